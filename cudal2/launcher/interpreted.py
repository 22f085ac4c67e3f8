"""The launcher in Python over ctypes: the behaviour of `native/kernel.hpp` at a higher cost per launch.

Used where the C++ part was not built. Both pass the same tests.
"""

import ctypes
import itertools
import math
import threading
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from ctypes import byref, c_int, c_size_t, c_uint32, c_uint64, c_void_p
from functools import cached_property
from typing import NamedTuple

from cudal2.launcher import driver_types as types
from cudal2.launcher.driver_types import DriverLibrary
from cudal2.launcher.loaded_kernel import ALIGNMENT, BuiltKernel
from cudal2_agent.contract.errors import DeviceUnavailable, LauncherError
from cudal2_agent.contract.plan.launching import (
    TENSOR_MAP_BYTES,
    argument_bytes,
    pack_argument,
    programmatic_edges,
    zeroes_every_run,
)
from cudal2_agent.contract.plan.plan import PORTABLE_CLUSTER, ResolvedLaunch, ResolvedPlan, TensorMapSpec
from cudal2_agent.contract.plan.resolve import operand_shape
from cudal2_agent.contract.records.library import StoredAlgorithm
from cudal2_agent.contract.records.task import ElementType, GemmTask

MAX_TENSOR_MAPS = 256  # per kernel
MAX_WORKSPACES = 256  # per kernel
_MAP_ALIGNMENT = 128


class InterpretedLauncher:
    """One GPU with its primary context. Raises: DeviceUnavailable."""

    name = "Python"

    def __init__(self, device: int, driver: str) -> None:
        self.library, self.device = DriverLibrary(driver), device
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


class _PlannedLaunch(NamedTuple):
    """One launch of a plan. `attributes` belong to `config`, which points to them."""

    launch: ResolvedLaunch
    function: c_void_p
    config: types.LaunchConfig
    attributes: object


class InterpretedKernel:
    """Kernel and plan on one GPU. Raises: LauncherError."""

    c_entry = None

    def __init__(self, gpu: InterpretedLauncher, kernel: BuiltKernel) -> None:
        self._gpu, self._plan, self._task = gpu, kernel.plan, kernel.task
        self._lock = threading.Lock()
        self._maps: dict[tuple[TensorMapSpec, int], bytes] = {}
        self._workspaces: dict[tuple[int, int], int] = {}
        _check_chip(kernel.plan, gpu)
        library = c_void_p()
        with gpu.current(), gpu.relaxed_capture():
            gpu.library.call("cuLibraryLoadData", byref(library), kernel.cubin, None, None, 0, None, None, 0)
            self._entries = [
                _PlannedLaunch(launch, _load_function(gpu.library, library, launch), *_configure(launch, edge))
                for launch, edge in zip(kernel.plan.launches, programmatic_edges(kernel.plan), strict=True)
            ]

    @property
    def tensor_maps(self) -> int:
        """Number of descriptors in the cache."""
        return len(self._maps)

    @property
    def workspaces(self) -> int:
        """Number of workspaces, one per stream and capture."""
        return len(self._workspaces)

    def launch(self, a: int, b: int, d: int, stream: int) -> None:
        if (a | b | d) % ALIGNMENT:
            raise LauncherError(
                "operands must be aligned to 256 bytes, as they were when the kernel was verified", "CUDA_ERROR_INVALID_VALUE"
            )
        with self._gpu.current(), self._lock:
            scratch = self._workspace_of(stream) if self._plan.workspace_bytes else 0
            pointers = {"A": a, "B": b, "D": d, "workspace": scratch}
            if zeroes_every_run(self._plan):
                self._gpu.library.call("cuMemsetD8Async", scratch, 0, self._plan.zero_bytes, stream)
            for entry in self._entries:
                self._enqueue(entry, pointers, stream)

    def _enqueue(self, entry: _PlannedLaunch, pointers: Mapping[str, int], stream: int) -> None:
        values = [pack_argument(arg, pointers, lambda spec: self._map(spec, pointers[spec.of])) for arg in entry.launch.args]
        memory = [_aligned(value) for value in values]
        parameters = (c_void_p * max(len(memory), 1))(*(address for address, _ in memory))
        entry.config.stream = stream
        self._gpu.library.call("cuLaunchKernelEx", byref(entry.config), entry.function, parameters, None)

    def _map(self, spec: TensorMapSpec, address: int) -> bytes:
        if (known := self._maps.get((spec, address))) is not None:
            return known
        if len(self._maps) >= MAX_TENSOR_MAPS:
            self._maps.clear()
        encoded = self._maps[spec, address] = _encode(self._gpu.library, spec, self._task, address)
        return encoded

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


def _check_chip(plan: ResolvedPlan, gpu: InterpretedLauncher) -> None:
    if plan.sms not in (0, gpu.sms):
        raise LauncherError(
            f"the kernel was planned for a GPU of {plan.sms} SMs; cuda:{gpu.device} has {gpu.sms}", "CUDA_ERROR_INVALID_DEVICE"
        )


def _load_function(driver: DriverLibrary, library: c_void_p, launch: ResolvedLaunch) -> c_void_p:
    """The entry of one launch, with the shared memory and the cluster size that its plan asks for."""
    kernel, function = c_void_p(), c_void_p()
    driver.call("cuLibraryGetKernel", byref(kernel), library, launch.entry.encode())
    driver.call("cuKernelGetFunction", byref(function), kernel)
    driver.call("cuFuncLoad", function)
    if _declared(driver, function) != [argument_bytes(arg) for arg in launch.args]:
        raise LauncherError(f"{launch.entry} takes other parameters than its plan passes", "CUDA_ERROR_INVALID_VALUE")
    if launch.dynamic_smem:
        driver.call("cuFuncSetAttribute", function, types.MAX_DYNAMIC_SHARED, launch.dynamic_smem)
    if math.prod(launch.cluster) > PORTABLE_CLUSTER:
        driver.call("cuFuncSetAttribute", function, types.NON_PORTABLE_CLUSTER, 1)
    return function


def _declared(driver: DriverLibrary, function: c_void_p) -> list[int]:
    """Sizes of the parameters that a kernel declares. Raises: LauncherError."""
    sizes: list[int] = []
    for index in itertools.count():
        offset, size = c_size_t(), c_size_t()
        status = driver.status("cuFuncGetParamInfo", function, index, byref(offset), byref(size))
        if status == types.INVALID_VALUE:
            break
        driver.call("cuFuncGetParamInfo", function, index, byref(offset), byref(size))
        sizes.append(size.value)
    return sizes


def _configure(launch: ResolvedLaunch, programmatic: bool) -> tuple[types.LaunchConfig, object]:
    """A configuration without its stream, and the attributes that it points to."""
    wanted = []
    if launch.cluster != (1, 1, 1):
        wanted.append(types.LaunchAttribute(types.ATTRIBUTE_CLUSTER, 0, types.LaunchValue(cluster=launch.cluster)))
    if programmatic:
        wanted.append(types.LaunchAttribute(types.ATTRIBUTE_PROGRAMMATIC, 0, types.LaunchValue(programmatic=1)))
    attributes = (types.LaunchAttribute * len(wanted))(*wanted)
    config = types.LaunchConfig(launch.grid, launch.block, launch.dynamic_smem, None, attributes, len(wanted))
    return config, attributes


def _encode(driver: DriverLibrary, spec: TensorMapSpec, task: GemmTask, address: int) -> bytes:
    """The descriptor of an operand at an address. Raises: LauncherError."""
    rows, columns = operand_shape(task, spec.of)
    target, _memory = _aligned(bytes(TENSOR_MAP_BYTES))
    driver.call(
        "cuTensorMapEncodeTiled",
        target,
        types.BFLOAT16 if task.element is ElementType.BF16 else types.FLOAT16,
        2,
        address,
        (c_uint64 * 2)(columns, rows),
        (c_uint64 * 1)(columns * 2),
        (c_uint32 * 2)(*spec.box),
        (c_uint32 * 2)(1, 1),
        0,
        (0, 32, 64, 128).index(spec.swizzle),
        (0, 64, 128, 256).index(spec.l2),
        0,
    )
    return ctypes.string_at(target, TENSOR_MAP_BYTES)


def _aligned(value: bytes) -> tuple[int, object]:
    """Address of a copy of some bytes, aligned as a descriptor must be, and the memory that holds it."""
    memory = (ctypes.c_char * (len(value) + _MAP_ALIGNMENT))()
    address = ctypes.addressof(memory)
    address += -address % _MAP_ALIGNMENT
    ctypes.memmove(address, value, len(value))
    return address, memory
