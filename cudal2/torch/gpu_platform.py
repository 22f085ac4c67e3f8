"""Devices, streams and the launcher of this process, behind a protocol that tests implement on the CPU."""

import ctypes
from typing import Protocol

import torch

from cudal2.dispatch.decision import GpuIdentity
from cudal2.launcher.launcher import Launcher, open_launcher
from cudal2.launcher.loaded_kernel import ALIGNMENT, BuiltKernel, LoadedKernel
from cudal2.launcher.lt_algorithms import cublas_version, library_files
from cudal2.library.prepared_kernels import CachedKernel
from cudal2_agent.contract.records.library import StoredAlgorithm
from cudal2_agent.contract.records.task import Arch, GemmTask

_NVML = "libnvidia-ml.so.1"
_VERSION_CHARS = 80


class Platform(Protocol):
    """`dispatch_key`: of the kernels that are replaced. `device_type`: of the tensors that are served.

    `alignment`: of operands and outputs, in bytes; a power of two.
    """

    dispatch_key: str
    device_type: str
    alignment: int

    def missing(self) -> str:
        """Why nothing can be served at all; empty where something can."""
        ...

    def devices(self) -> tuple[int, ...]:
        """The devices as tensors number them."""
        ...

    def current_device(self) -> int:
        """The device that tensors are made on; there is one."""
        ...

    def identity(self, device: int) -> GpuIdentity:
        """Raises: Cudal2Error where the device or its driver cannot be read."""
        ...

    def load(self, device: int, kernel: CachedKernel, task: GemmTask) -> LoadedKernel:
        """Raises: Cudal2Error for a cubin that the driver refuses, and where the launcher is not built."""
        ...

    def load_algorithm(self, device: int, algorithm: StoredAlgorithm) -> LoadedKernel:
        """Raises: Cudal2Error where cuBLASLt does not offer the algorithm, and where the launcher in C++ is not built."""
        ...

    def stream(self, device: int) -> int:
        """The handle of the device's current stream."""
        ...

    def capturing(self) -> bool:
        """Whether the current stream is recorded into a CUDA graph."""
        ...


class CudaPlatform:
    """The GPUs that PyTorch sees."""

    dispatch_key = "CUDA"
    device_type = "cuda"
    alignment = ALIGNMENT

    def __init__(self) -> None:
        self._launchers: dict[int, Launcher] = {}
        self._cublaslt = library_files(torch.version.cuda)

    def missing(self) -> str:
        if torch.version.cuda is None:
            return f"PyTorch {torch.__version__} is built without CUDA"
        return "" if torch.cuda.is_available() else "PyTorch finds no GPU or no driver"

    def devices(self) -> tuple[int, ...]:
        return () if self.missing() else tuple(range(torch.cuda.device_count()))

    def current_device(self) -> int:
        return int(torch.cuda.current_device())

    def identity(self, device: int) -> GpuIdentity:
        properties = torch.cuda.get_device_properties(device)
        number = f"sm_{properties.major}{properties.minor}"
        arch = next((arch for arch in Arch if arch.value in (number, f"{number}a")), None)
        name = properties.name.removeprefix("NVIDIA ").strip()
        sms, cublas = properties.multi_processor_count, cublas_version(self._cublaslt)
        driver, nvrtc = _driver_version(), _nvrtc_version()
        return GpuIdentity(gpu=name, driver=driver, arch=arch, sms=sms, cublas=cublas, nvrtc=nvrtc)

    def load(self, device: int, kernel: CachedKernel, task: GemmTask) -> LoadedKernel:
        return self._launcher(device).load(BuiltKernel(kernel.cubin, kernel.plan, task, kernel.shared))

    def load_algorithm(self, device: int, algorithm: StoredAlgorithm) -> LoadedKernel:
        return self._launcher(device).load_algorithm(algorithm, self._cublaslt)

    def stream(self, device: int) -> int:
        return int(torch._C._cuda_getCurrentRawStream(device))

    def capturing(self) -> bool:
        return bool(torch.cuda.is_current_stream_capturing())

    def _launcher(self, device: int) -> Launcher:
        launcher = self._launchers.get(device)
        if launcher is None:
            launcher = self._launchers[device] = open_launcher(device)
        return launcher


def _driver_version() -> str:
    """The driver's own version where NVML is available, else the CUDA version that it supports, as measurements keep it."""
    text = ctypes.create_string_buffer(_VERSION_CHARS)
    try:
        nvml = ctypes.CDLL(_NVML)
    except OSError:
        return _cuda_version(torch._C._cuda_getDriverVersion())
    if nvml.nvmlInit_v2() != 0:
        return _cuda_version(torch._C._cuda_getDriverVersion())
    try:
        failed = nvml.nvmlSystemGetDriverVersion(text, ctypes.c_uint(_VERSION_CHARS))
    finally:
        nvml.nvmlShutdown()
    return _cuda_version(torch._C._cuda_getDriverVersion()) if failed else text.value.decode()


def _nvrtc_version() -> str:
    """Version of the NVRTC that builds of this Python load, as measurements keep it; empty where there is none."""
    try:
        from cuda.bindings import nvrtc

        failed, major, minor = nvrtc.nvrtcVersion()
    except (ImportError, RuntimeError, OSError):
        return ""
    return "" if int(failed) else f"{major}.{minor}"


def _cuda_version(packed: int) -> str:
    """Such as `CUDA 13.0` for 13000."""
    return f"CUDA {packed // 1000}.{packed % 1000 // 10}"
