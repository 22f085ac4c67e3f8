"""One GPU of this process: its primary context, shared by cupy and the driver calls, and its stream."""

from contextlib import ExitStack
from functools import cached_property

import cupy
from cuda.bindings import driver

from cudal2_agent.contract.errors import DeviceUnavailable
from cudal2_agent.contract.plan.chip import Chip
from cudal2_agent.contract.records.evaluation import Environment
from cudal2_agent.contract.records.task import Arch
from cudal2_agent.sandbox.cuda.driver import DriverFault, call, no_gpu
from cudal2_agent.sandbox.cuda.environment import arch_of, device_attribute, device_name, read_chip, read_environment
from cudal2_agent.sandbox.cuda.guard.mapping import Allocator

_ATTRIBUTE = driver.CUdevice_attribute


class Device:
    """Makes one GPU the current one of this thread permanently: its primary context and `stream`, a cupy stream.

    All cupy work of the thread goes to `stream` from here on, so that buffers and launches are ordered. Behind another stream's
    `with` cupy returns to it. Its memory comes from `pool`, at unpredictable addresses. Raises: DeviceUnavailable with the
    remedy where there is no such GPU, or none that the product has a target for.
    """

    def __init__(self, index: int) -> None:
        count = _count_devices()
        if index >= count:
            raise DeviceUnavailable(
                f"cuda:{index} does not exist; this machine has {count} GPU(s): use cuda:0 to cuda:{count - 1}"
            )
        self.index = index
        self.arch = _arch(index)
        try:
            cupy.cuda.Device(index).use()
            cupy.cuda.runtime.deviceSynchronize()  # creates the primary context here rather than in a timed region
            self.stream = cupy.cuda.Stream(non_blocking=True)
        except cupy.cuda.runtime.CUDARuntimeError as exc:
            raise DeviceUnavailable(f"cuda:{index} ({device_name(index)}) gives no context: {_refusal(index, exc)}") from exc
        ExitStack().enter_context(self.stream)  # for good: `use` would last until the next `with` ends
        self._allocator = Allocator(index)
        self.pool = self._allocator.pool
        cupy.cuda.set_allocator(self.pool.malloc)

    @cached_property
    def chip(self) -> Chip:
        return read_chip(self.index, self.arch)

    @cached_property
    def environment(self) -> Environment:
        return read_environment(self.index, self.arch)

    @cached_property
    def pci_bus_id(self) -> str:
        """The GPU's name in NVML, independent of CUDA_VISIBLE_DEVICES."""
        return str(cupy.cuda.Device(self.index).pci_bus_id)

    def synchronize(self) -> None:
        """Wait for all work on the GPU. Raises: DriverFault for an error that a kernel caused."""
        call(driver.cuCtxSynchronize)

    def poison(self) -> DriverFault | None:
        """The context's sticky error, None while it is healthy; no call succeeds after a sticky error."""
        try:
            self.synchronize()
        except DriverFault as fault:
            return fault
        return None


def _count_devices() -> int:
    if reason := no_gpu():
        raise DeviceUnavailable(reason)
    count: int = call(driver.cuDeviceGetCount)
    return count


def _refusal(index: int, error: Exception) -> str:
    """Why a GPU refuses a context, by its compute mode."""
    match device_attribute(index, _ATTRIBUTE.CU_DEVICE_ATTRIBUTE_COMPUTE_MODE):
        case driver.CUcomputemode.CU_COMPUTEMODE_EXCLUSIVE_PROCESS:
            return "it is in exclusive-process mode, and another process has it; wait for that, or: nvidia-smi -c DEFAULT"
        case driver.CUcomputemode.CU_COMPUTEMODE_PROHIBITED:
            return "it is in prohibited mode; nvidia-smi -c DEFAULT allows processes again"
    return f"{error}; is its memory in use by another process?"


def _arch(index: int) -> Arch:
    major = device_attribute(index, _ATTRIBUTE.CU_DEVICE_ATTRIBUTE_COMPUTE_CAPABILITY_MAJOR)
    minor = device_attribute(index, _ATTRIBUTE.CU_DEVICE_ATTRIBUTE_COMPUTE_CAPABILITY_MINOR)
    arch = arch_of(major, minor)
    if arch is None:
        raise DeviceUnavailable(
            f"cuda:{index} ({device_name(index)}) has compute capability {major}.{minor}; "
            f"supported are {', '.join(Arch)}: run with --device none to build for one of them"
        )
    return arch
