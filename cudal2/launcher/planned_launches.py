"""The launches of a resolved plan on one GPU, over ctypes: loaded once, enqueued with the addresses of the plan's buffers."""

import ctypes
import itertools
import math
from collections.abc import Iterable, Mapping
from contextlib import AbstractContextManager
from ctypes import byref, c_size_t, c_uint32, c_uint64, c_void_p
from typing import NamedTuple, Protocol

from cudal2.launcher import driver_types as types
from cudal2.launcher.driver_types import DriverLibrary
from cudal2_agent.contract.errors import LauncherError
from cudal2_agent.contract.plan.launching import TENSOR_MAP_BYTES, argument_bytes, pack_argument, programmatic_edges
from cudal2_agent.contract.plan.plan import PORTABLE_CLUSTER, ResolvedLaunch, ResolvedPlan, TensorMapSpec
from cudal2_agent.contract.plan.tensor_view import MapLayout, map_layout
from cudal2_agent.contract.records.named_buffer import Buffer

MAX_TENSOR_MAPS = 256  # per kernel
_MAP_ALIGNMENT = 128


class DriverGpu(Protocol):
    """One GPU with its primary context."""

    library: DriverLibrary
    device: int
    sms: int

    def current(self) -> AbstractContextManager[None]: ...
    def code(self, cubin: bytes, shared: bool) -> c_void_p: ...
    def relaxed_capture(self) -> AbstractContextManager[None]: ...


class _PlannedLaunch(NamedTuple):
    """One launch of a plan. `attributes` belong to `config`, which points to them."""

    launch: ResolvedLaunch
    function: c_void_p
    config: types.LaunchConfig
    attributes: object


class PlannedLaunches:
    """Made and used while the GPU's context is current, by one thread at a time.

    Raises: LauncherError where the driver refuses the code, or the plan does not fit the code or the GPU.
    """

    def __init__(
        self, gpu: DriverGpu, cubin: bytes, plan: ResolvedPlan, buffers: Iterable[Buffer], shared: bool = False
    ) -> None:
        """`buffers`: the task's, and the plan's scratch. `shared`: as of `BuiltKernel`."""
        _check_chip(plan, gpu)
        self._driver, self._buffers = gpu.library, {buffer.name: buffer for buffer in buffers}
        self._maps: dict[tuple[TensorMapSpec, int], bytes] = {}
        library = gpu.code(cubin, shared)
        self._entries = [
            _PlannedLaunch(launch, _load_function(gpu.library, library, launch), *_configure(launch, edge))
            for launch, edge in zip(plan.launches, programmatic_edges(plan), strict=True)
        ]

    @property
    def tensor_maps(self) -> int:
        """Number of descriptors in the cache."""
        return len(self._maps)

    def enqueue(self, place: int, pointers: Mapping[str, int], stream: int) -> None:
        """One launch, by its place in the plan. `pointers`: addresses by buffer, and of `workspace`. Raises: LauncherError."""
        entry = self._entries[place]
        values = [pack_argument(arg, pointers, lambda spec: self._map(spec, pointers[spec.of])) for arg in entry.launch.args]
        memory = [_aligned(value) for value in values]
        parameters = (c_void_p * max(len(memory), 1))(*(address for address, _ in memory))
        entry.config.stream = stream
        self._driver.call("cuLaunchKernelEx", byref(entry.config), entry.function, parameters, None)

    def _map(self, spec: TensorMapSpec, address: int) -> bytes:
        if (known := self._maps.get((spec, address))) is not None:
            return known
        if len(self._maps) >= MAX_TENSOR_MAPS:
            self._maps.clear()
        layout = map_layout(spec, self._buffers)
        encoded = self._maps[spec, address] = _encode(self._driver, spec, layout, address)
        return encoded


def _check_chip(plan: ResolvedPlan, gpu: DriverGpu) -> None:
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


def _encode(driver: DriverLibrary, spec: TensorMapSpec, layout: MapLayout, address: int) -> bytes:
    """The descriptor over a buffer at an address. Raises: LauncherError."""
    rank = len(layout.sizes)
    target, _memory = _aligned(bytes(TENSOR_MAP_BYTES))
    driver.call(
        "cuTensorMapEncodeTiled",
        target,
        types.TENSOR_MAP_TYPES[layout.element],
        rank,
        address + layout.offset_bytes,
        (c_uint64 * rank)(*layout.sizes),
        (c_uint64 * rank)(*layout.strides),
        (c_uint32 * rank)(*spec.box),
        (c_uint32 * rank)(*(1,) * rank),
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
