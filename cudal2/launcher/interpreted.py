"""The launcher in Python over ctypes: the behaviour of `native/kernel.hpp` at a higher cost per launch.

Used where the C++ part was not built. Both pass the same tests.
"""

import threading
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from ctypes import byref, c_int, c_uint64, c_void_p
from functools import cached_property

from cudal2.launcher import driver_types as types
from cudal2.launcher.driver_types import DriverLibrary
from cudal2.launcher.loaded_kernel import ALIGNMENT, BuiltKernel
from cudal2.launcher.planned_launches import PlannedLaunches
from cudal2_agent.contract.errors import DeviceUnavailable, LauncherError
from cudal2_agent.contract.plan.launching import (
    zeroes_every_run,
)
from cudal2_agent.contract.records.library import StoredAlgorithm

MAX_WORKSPACES = 256  # per kernel


class InterpretedLauncher:
    """One GPU with its primary context. Raises: DeviceUnavailable."""

    name = "Python"

    def __init__(self, device: int, driver: str) -> None:
        self.library, self.device = DriverLibrary(driver), device
        self._lock = threading.Lock()
        self._shared: dict[bytes, c_void_p] = {}
        count, sms, context, setup = c_int(), c_int(), c_void_p(), c_void_p()
        self.library.call("cuDeviceGetCount", byref(count))
        if not 0 <= device < count.value:
            raise DeviceUnavailable(f"cuda:{device} does not exist; the driver shows {count.value} GPU(s)")
        self.library.call("cuDeviceGetAttribute", byref(sms), types.SM_COUNT, device)
        self.library.call("cuDevicePrimaryCtxRetain", byref(context), device)
        self._context, self.sms = context, sms.value
        with self.current():
            self.library.call("cuStreamCreate", byref(setup), types.NON_BLOCKING)
        self._setup = setup

    def load(self, kernel: BuiltKernel) -> "InterpretedKernel":
        return InterpretedKernel(self, kernel)

    def load_algorithm(self, algorithm: StoredAlgorithm, files: Sequence[str]) -> "InterpretedKernel":
        del files
        raise DeviceUnavailable(
            f"the launcher in Python runs no algorithm of cuBLASLt, such as that of {algorithm.task.shape}; "
            "reinstall with a C++ compiler (pip install --force-reinstall .)"
        )

    @contextmanager
    def current(self) -> Iterator[None]:
        """The context, current on this thread."""
        now, popped = c_void_p(), c_void_p()
        self.library.call("cuCtxGetCurrent", byref(now))
        if now.value == self._context.value:
            yield
            return
        self.library.call("cuCtxPushCurrent_v2", self._context)
        try:
            yield
        finally:
            self.library.call("cuCtxPopCurrent_v2", byref(popped))

    def code(self, cubin: bytes, shared: bool) -> c_void_p:
        """The code of a cubin, loaded anew, or once for all that share it. It stays until the process ends."""
        with self._lock:
            if shared and cubin in self._shared:
                return self._shared[cubin]
            library = c_void_p()
            self.library.call("cuLibraryLoadData", byref(library), cubin, None, None, 0, None, None, 0)
            if shared:
                self._shared[cubin] = library
            return library

    @contextmanager
    def relaxed_capture(self) -> Iterator[None]:
        """This thread may allocate while a stream is being captured; what it does is not captured."""
        mode = c_int(types.CAPTURE_MODE_RELAXED)
        self.library.call("cuThreadExchangeStreamCaptureMode", byref(mode))
        try:
            yield
        finally:
            self.library.call("cuThreadExchangeStreamCaptureMode", byref(mode))

    def allocate(self, size_bytes: int, zero_bytes: int) -> int:
        """New memory, with its first bytes zero. It stays until the process ends."""
        address = c_uint64()
        with self.relaxed_capture():
            self.library.call("cuMemAlloc_v2", byref(address), size_bytes)
            if not zero_bytes:
                return address.value
            try:
                self.library.call("cuMemsetD8Async", address, 0, zero_bytes, self._setup)
                self.library.call("cuStreamSynchronize", self._setup)
            except LauncherError:
                self.library.status("cuMemFree_v2", address)
                raise
        return address.value


class InterpretedKernel:
    """Kernel and plan on one GPU. Raises: LauncherError."""

    c_entry = None

    def __init__(self, gpu: InterpretedLauncher, kernel: BuiltKernel) -> None:
        self._gpu, self._plan, self._third = gpu, kernel.plan, kernel.task.third
        self._lock = threading.Lock()
        self._workspaces: dict[tuple[int, int], int] = {}
        with gpu.current(), gpu.relaxed_capture():
            self._launches = PlannedLaunches(gpu, kernel.cubin, kernel.plan, kernel.task.buffers, kernel.shared)

    @property
    def tensor_maps(self) -> int:
        """Number of descriptors in the cache."""
        return self._launches.tensor_maps

    @property
    def workspaces(self) -> int:
        """Number of workspaces, one per stream and capture."""
        return len(self._workspaces)

    def launch(self, a: int, b: int, d: int, stream: int, third: int = 0) -> None:
        if (self._third is not None) != bool(third):
            reads = "the kernel reads a third operand, and none is given"
            why = reads if self._third is not None else "the kernel reads no third operand"
            raise LauncherError(why, "CUDA_ERROR_INVALID_VALUE")
        if (a | b | d | third) % ALIGNMENT:
            raise LauncherError(
                "operands must be aligned to 256 bytes, as they were when the kernel was verified", "CUDA_ERROR_INVALID_VALUE"
            )
        with self._gpu.current(), self._lock:
            scratch = self._workspace_of(stream) if self._plan.workspace_bytes else 0
            pointers = {"A": a, "B": b, "D": d, "workspace": scratch} | ({self._third: third} if self._third else {})
            if zeroes_every_run(self._plan):
                self._gpu.library.call("cuMemsetD8Async", scratch, 0, self._plan.zero_bytes, stream)
            for place in range(len(self._plan.launches)):
                self._launches.enqueue(place, pointers, stream)

    def _workspace_of(self, stream: int) -> int:
        """The workspace of a stream, or of a capture on it, whose graph may be launched beside later calls on the stream.

        A stream that is captured may not be asked for its id, so it is known by its handle and the capture.
        """
        status, capture = c_int(), c_uint64()
        self._gpu.library.call("cuStreamGetCaptureInfo_v2", stream, byref(status), byref(capture), None, None, None)
        if status.value == types.CAPTURE_ACTIVE:
            key = stream, capture.value
        else:
            identity = c_uint64()
            self._gpu.library.call("cuStreamGetId", stream, byref(identity))
            key = identity.value, 0
        if key not in self._workspaces:
            if len(self._workspaces) >= MAX_WORKSPACES:
                raise LauncherError(
                    f"the kernel has workspaces for {MAX_WORKSPACES} streams and captures, which is the maximum",
                    "CUDA_ERROR_OUT_OF_MEMORY",
                )
            self._workspaces[key] = self._gpu.allocate(self._plan.workspace_bytes, self._zeroed_once)
        return self._workspaces[key]

    @cached_property
    def _zeroed_once(self) -> int:
        return self._plan.zero_bytes if self._plan.zero == "restored" else 0
