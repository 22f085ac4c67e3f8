"""The GPUs that this process sees, read from the driver without creating a context."""

from collections.abc import Iterable
from typing import Any

from cudal2_agent.agent.wiring.remote import is_remote, remote_arch
from cudal2_agent.contract.base import Record
from cudal2_agent.contract.records.task import Arch
from cudal2_agent.contract.settings.run_settings import WORKER_WAIT_S


class Gpu(Record):
    """`arch`: the target whose kernels run on it, None where this product has none. `sms`: 0 where that was not asked.

    `exclusive`: whether one process at a time may use it. `bus`: its PCI address, by which NVML knows it.
    """

    index: int
    name: str
    arch: Arch | None
    sms: int = 0
    exclusive: bool = False
    bus: str = ""

    @property
    def chip(self) -> str:
        """The name without its vendor, by which rows, libraries and policies know it."""
        return self.name.removeprefix("NVIDIA ").strip()


def visible_gpus() -> list[Gpu]:
    """The GPUs in the driver's order, CUDA_VISIBLE_DEVICES applied; none where there is no driver.

    `cuda.bindings` raises RuntimeError where it cannot load the driver's library.
    """
    try:
        from cuda.bindings import driver
    except ImportError:
        return []
    try:
        status, *_ = driver.cuInit(0)
        if status != driver.CUresult.CUDA_SUCCESS:
            return []
        _, count = driver.cuDeviceGetCount()
    except RuntimeError:
        return []
    return [_read(driver, index) for index in range(count)]


def processes_on(gpu: Gpu) -> int:
    """Processes that use a GPU now, those of other containers and MIG instances included; 0 where NVML does not tell."""
    try:
        import pynvml

        pynvml.nvmlInit()
    except ImportError:
        return 0
    except pynvml.NVMLError:
        return 0
    try:
        return len(pynvml.nvmlDeviceGetComputeRunningProcesses(pynvml.nvmlDeviceGetHandleByPciBusId(gpu.bus.encode())))
    except pynvml.NVMLError:
        return 0
    finally:
        pynvml.nvmlShutdown()


def default_arch(device: str, wait_s: float = WORKER_WAIT_S) -> Arch:
    """The architecture to write for: that of the chosen GPU, else sm_90a. `wait_s`: for a worker elsewhere.

    Raises: DeviceUnavailable where a worker elsewhere cannot be reached.
    """
    if is_remote(device):
        return remote_arch(device, wait_s)
    if device in ("none", "emulator"):
        return Arch.SM_90A
    wanted = int(device.partition(":")[2]) if device.startswith("cuda:") else 0
    found = next((gpu.arch for gpu in visible_gpus() if gpu.index == wanted), None)
    return found or Arch.SM_90A


def by_chip(gpus: Iterable[Gpu]) -> dict[str, list[int]]:
    """The numbers of GPUs by their chip. Instances of MIG of other sizes are other chips."""
    found: dict[str, list[int]] = {}
    for gpu in gpus:
        found.setdefault(gpu.chip, []).append(gpu.index)
    return found


def visible_sms(arch: Arch) -> int:
    """SMs of the first visible GPU of an architecture; 0 where there is none."""
    return next((gpu.sms for gpu in visible_gpus() if gpu.arch is arch), 0)


def _read(driver: Any, index: int) -> Gpu:
    attribute = driver.CUdevice_attribute
    _, handle = driver.cuDeviceGet(index)
    _, name = driver.cuDeviceGetName(128, handle)
    _, major = driver.cuDeviceGetAttribute(attribute.CU_DEVICE_ATTRIBUTE_COMPUTE_CAPABILITY_MAJOR, handle)
    _, minor = driver.cuDeviceGetAttribute(attribute.CU_DEVICE_ATTRIBUTE_COMPUTE_CAPABILITY_MINOR, handle)
    _, sms = driver.cuDeviceGetAttribute(attribute.CU_DEVICE_ATTRIBUTE_MULTIPROCESSOR_COUNT, handle)
    _, mode = driver.cuDeviceGetAttribute(attribute.CU_DEVICE_ATTRIBUTE_COMPUTE_MODE, handle)
    _, bus = driver.cuDeviceGetPCIBusId(16, handle)
    from cudal2_agent.sandbox.cuda.environment import arch_of

    return Gpu(
        index=index,
        name=name.split(b"\0")[0].decode(),
        arch=arch_of(major, minor),
        sms=sms,
        exclusive=mode == driver.CUcomputemode.CU_COMPUTEMODE_EXCLUSIVE_PROCESS,
        bus=bus.split(b"\0")[0].decode(),
    )
