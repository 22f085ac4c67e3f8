"""The trusted launcher: turns a resolved plan and a cubin into launches on a stream.

A candidate's author writes device code only; this module is the host side.
"""

import ctypes
import math
from collections.abc import Mapping, Sequence
from typing import Any, Literal, Protocol

from cuda.bindings import driver

from cudal2_agent.contract.plan.launching import (
    aligned_offsets,
    argument_bytes,
    pack_argument,
    programmatic_edges,
    zeroes_every_run,
)
from cudal2_agent.contract.plan.library_call import ResolvedCall
from cudal2_agent.contract.plan.plan import (
    PORTABLE_CLUSTER,
    Arg,
    ResolvedLaunch,
    ResolvedPlan,
    ScalarArg,
    TensorArg,
    TensorMapArg,
    TensorPartArg,
    WorkspaceArg,
)
from cudal2_agent.contract.records.module_task import Task
from cudal2_agent.contract.records.task import GemmTask
from cudal2_agent.sandbox.cuda.contender import Bound, NamedOperands, Operands
from cudal2_agent.sandbox.cuda.driver import DriverFault, Fault, call
from cudal2_agent.sandbox.cuda.guard.buffers import address
from cudal2_agent.sandbox.cuda.guard.comparing import ModuleVariables
from cudal2_agent.sandbox.cuda.guard.placement import slot_bytes
from cudal2_agent.sandbox.cuda.tensor_map import TensorMaps, named_buffers

_ATTRIBUTE = driver.CUlaunchAttributeID
_FUNCTION = driver.CUfunction_attribute
MAX_LOCAL_BYTES = 16 * 1024  # per thread; more cannot be cleared between samples


class ParameterMismatch(Fault):
    """A plan whose arguments differ from the parameters that the kernel declares."""


class LocalMemory(Fault):
    """A kernel with more local memory per thread than can be cleared between samples."""


class Library(Protocol):
    """Runs a plan's library calls on the memory of its buffers."""

    def bind(self, call: ResolvedCall, pointers: Mapping[str, int]) -> Bound:
        """`pointers`: addresses of the call's buffers."""
        ...


class Kernel:
    """A candidate on the device: a `Contender` whose launches and library calls all come from its plan.

    The workspace that it needs holds the plan's own, then its scratch. `library`: runs the calls, where the plan has any.
    Raises: DriverFault where the driver refuses the cubin, an entry, or its shared memory and cluster size;
    ParameterMismatch where an entry takes other parameters than its plan passes.
    """

    def __init__(
        self,
        name: str,
        cubin: bytes,
        plan: ResolvedPlan,
        task: Task,
        *,
        atomics: bool = False,
        library: Library | None = None,
    ) -> None:
        self.name = name
        self.scratch = scratch_sizes(plan, task)
        self.own_workspace_bytes = plan.workspace_bytes
        self.workspace_bytes = plan.workspace_bytes
        if self.scratch:
            self.workspace_bytes = slot_bytes(plan.workspace_bytes) + sum(map(slot_bytes, self.scratch.values()))
        self.zero: bool | Literal["restored"] = plan.zero
        self.zero_bytes = plan.zero_bytes
        self.programmatic = any(programmatic_edges(plan))
        self.atomics = atomics
        self._plan, self._task, self._library = plan, task, library
        self._module = call(driver.cuModuleLoadData, cubin)
        maps = TensorMaps(task, plan.scratch)
        self._entries = [
            _LoadedEntry(_load_function(self._module, launch), launch, edge, maps)
            for launch, edge in zip(plan.launches, programmatic_edges(plan), strict=True)
        ]
        self.local_bytes = max(_local_bytes(entry.function) for entry in self._entries)
        self._variables = ModuleVariables(self._module, cubin)

    def bind(self, operands: Operands | NamedOperands) -> "BoundKernel":
        """Fix the operands: encode tensor maps and pack parameters.

        Raises: ValueError where a buffer of the task or the workspace is missing or too small.
        """
        if isinstance(operands, NamedOperands):
            pointers = self._named_pointers(operands)
        else:
            assert isinstance(self._task, GemmTask)
            pointers = operand_pointers(operands, self._task, self.workspace_bytes)
        steps: list[Bound] = [BoundLaunch(entry, Parameters(entry.layout, pointers)) for entry in self._entries]
        for each in reversed(self._plan.calls):
            assert self._library is not None
            steps.insert(each.before, self._library.bind(each, pointers))
        zeroed = (pointers["workspace"], self.zero_bytes) if zeroes_every_run(self._plan) else None
        return BoundKernel(steps, zeroed)

    def altered(self) -> tuple[str, ...]:
        return self._variables.altered()

    def close(self) -> None:
        """Unload the code. Graphs and bound kernels made from it must not be launched any more."""
        call(driver.cuModuleUnload, self._module)

    def _named_pointers(self, operands: NamedOperands) -> dict[str, int]:
        """Addresses of the task's buffers, of scratch and of the workspace. Raises: ValueError."""
        pointers = {}
        for buffer in self._task.buffers:
            array = operands.arrays.get(buffer.name)
            if array is None or array.nbytes < buffer.bytes:
                raise ValueError(f"the operands hold no {buffer.name} of {buffer.bytes} bytes")
            pointers[buffer.name] = address(array)
        carved = {name for name in self.scratch if name not in operands.arrays}
        needed = self.workspace_bytes if carved else self.own_workspace_bytes
        if needed and (operands.workspace is None or operands.workspace.nbytes < needed):
            raise ValueError(f"the operands hold no workspace of {needed} bytes")
        pointers["workspace"] = address(operands.workspace) if needed else 0
        end = pointers["workspace"] + slot_bytes(self.own_workspace_bytes)
        for name, size_bytes in self.scratch.items():
            pointers[name] = end if name in carved else address(operands.arrays[name])
            end += slot_bytes(size_bytes)
        return pointers


class BoundKernel:
    """Launches and calls ready to enqueue; only asynchronous ones, so that a stream capture records them."""

    def __init__(self, steps: Sequence[Bound], zeroed: tuple[int, int] | None) -> None:
        self._steps = steps
        self._zeroed = zeroed

    def enqueue(self, stream: int, *, programmatic: bool | None = None) -> None:
        """Put the zeroing that the plan asks for, then every launch and call, on a stream. Raises: DriverFault."""
        if self._zeroed is not None:
            pointer, size_bytes = self._zeroed
            call(driver.cuMemsetD8Async, pointer, 0, size_bytes, stream)
        for step in self._steps:
            step.enqueue(stream, programmatic=programmatic)


class BoundLaunch:
    """One launch with its parameters."""

    def __init__(self, entry: "_LoadedEntry", parameters: "Parameters") -> None:
        self._entry, self._parameters = entry, parameters

    def enqueue(self, stream: int, *, programmatic: bool | None = None) -> None:
        self._entry.enqueue(stream, self._parameters, programmatic is not False)


class ParameterLayout:
    """The offsets of one launch's parameters in their block of memory, and the words of it that are addresses.

    The first block is packed argument by argument. Later ones are copies of it with other addresses, where every tensor map
    holds its address as plain bytes.
    """

    def __init__(self, args: Sequence[Arg], maps: TensorMaps) -> None:
        self._args, self._maps = args, maps
        self.offsets = aligned_offsets([argument_bytes(arg) for arg in args])
        self._template: bytearray | None = None
        self._addresses: list[tuple[int, str, int]] = []  # place in the block, buffer, bytes beyond its start

    def pack(self, pointers: Mapping[str, int]) -> bytes:
        """The block for operands at these addresses."""
        if self._template is None:
            return self._pack(pointers)
        block = bytearray(self._template)
        for place, name, beyond in self._addresses:
            block[place : place + 8] = (pointers.get(name, 0) + beyond).to_bytes(8, "little")
        return bytes(block)

    def _pack(self, pointers: Mapping[str, int]) -> bytes:
        block = bytearray(self.offsets[-1])
        found = []
        for arg, offset in zip(self._args, self.offsets, strict=False):
            value = pack_argument(arg, pointers, lambda spec: self._maps.encode(spec, pointers[spec.of]))
            block[offset : offset + len(value)] = value
            found.append(self._address(arg, offset))
        if None not in found:
            self._template = block
            self._addresses = [each for each in found if each]
        return bytes(block)

    def _address(self, arg: Arg, offset: int) -> tuple[int, str, int] | tuple[()] | None:
        """The offset of an argument's address; empty where it has none, None where that is unknown."""
        match arg:
            case TensorMapArg(tensor_map=spec):
                place = self._maps.place_of_address(spec)
                return None if place is None else (offset + place, spec.of, int(spec.offset_bytes))
            case TensorArg(tensor=name):
                return offset, name, 0
            case TensorPartArg(tensor=name, offset_bytes=beyond):
                return offset, name, int(beyond)
            case WorkspaceArg(workspace=beyond):
                return offset, "workspace", int(beyond)
            case ScalarArg():
                return ()


class Parameters:
    """The kernel parameters of one launch in one block of host memory, and the array of pointers the driver reads."""

    def __init__(self, layout: ParameterLayout, pointers: Mapping[str, int]) -> None:
        block = layout.pack(pointers)
        self._memory = (ctypes.c_char * (len(block) + 64))()
        base = ctypes.addressof(self._memory)
        base += -base % 64  # the alignment of a CUtensorMap
        ctypes.memmove(base, block, len(block))
        offsets = layout.offsets[:-1]
        self._array = (ctypes.c_void_p * max(len(offsets), 1))(*(base + offset for offset in offsets))
        self.address = ctypes.addressof(self._array)


class _LoadedEntry:
    """One launch of a plan with its two configurations: as planned, and without programmatic serialization."""

    def __init__(self, function: Any, launch: ResolvedLaunch, programmatic: bool, maps: TensorMaps) -> None:
        self.function, self.layout = function, ParameterLayout(launch.args, maps)
        self._plain = launch_config(launch, programmatic=False)
        self._planned = launch_config(launch, programmatic=True) if programmatic else self._plain

    def enqueue(self, stream: int, parameters: Parameters, programmatic: bool) -> None:
        config = self._planned if programmatic else self._plain
        config.hStream = stream
        call(driver.cuLaunchKernelEx, config, self.function, parameters.address, 0)


def launch_config(launch: ResolvedLaunch, *, programmatic: bool) -> Any:
    """A CUlaunchConfig without its stream."""
    config = driver.CUlaunchConfig()
    config.gridDimX, config.gridDimY, config.gridDimZ = launch.grid
    config.blockDimX, config.blockDimY, config.blockDimZ = launch.block
    config.sharedMemBytes = launch.dynamic_smem
    attributes = []
    if launch.cluster != (1, 1, 1):
        attribute = driver.CUlaunchAttribute()
        attribute.id = _ATTRIBUTE.CU_LAUNCH_ATTRIBUTE_CLUSTER_DIMENSION
        size = attribute.value.clusterDim
        size.x, size.y, size.z = launch.cluster
        attributes.append(attribute)
    if programmatic:
        attribute = driver.CUlaunchAttribute()
        attribute.id = _ATTRIBUTE.CU_LAUNCH_ATTRIBUTE_PROGRAMMATIC_STREAM_SERIALIZATION
        attribute.value.programmaticStreamSerializationAllowed = 1
        attributes.append(attribute)
    config.attrs = attributes
    config.numAttrs = len(attributes)
    return config


def scratch_sizes(plan: ResolvedPlan, task: Task) -> dict[str, int]:
    """Bytes of the plan's scratch, by name."""
    buffers = named_buffers(task, plan.scratch)
    return {each.name: buffers[each.name].bytes for each in plan.scratch}


def operand_pointers(operands: Operands, task: GemmTask, workspace_bytes: int) -> dict[str, int]:
    """Addresses of A, B and D, of a bias or `up`, and of the workspace, in the task's layout.

    Raises: ValueError where one is missing or too small.
    """
    a, b = operands.stored(task.layout)
    pointers = {"A": address(a), "B": address(b), "D": address(operands.d)}
    if task.third is not None:
        if (third := operands.third(task)) is None:
            raise ValueError(f"the operands hold no {task.third}")
        pointers[task.third] = address(third)
    if workspace_bytes:
        if operands.workspace is None or operands.workspace.nbytes < workspace_bytes:
            raise ValueError(f"the operands hold no workspace of {workspace_bytes} bytes")
        pointers["workspace"] = address(operands.workspace)
    return pointers


def _load_function(module: Any, launch: ResolvedLaunch) -> Any:
    """The entry of one launch, with the shared memory and the cluster size that its plan asks for."""
    function = call(driver.cuModuleGetFunction, module, launch.entry.encode())
    call(driver.cuFuncLoad, function)  # now, rather than lazily inside a capture or a timed region
    planned, declared = [argument_bytes(arg) for arg in launch.args], _parameter_bytes(function)
    if planned != declared:  # the driver would read past what was packed
        raise ParameterMismatch(f"{launch.entry} takes parameters of {declared} bytes; its plan passes {planned}")
    if launch.dynamic_smem:
        attribute = _FUNCTION.CU_FUNC_ATTRIBUTE_MAX_DYNAMIC_SHARED_SIZE_BYTES
        call(driver.cuFuncSetAttribute, function, attribute, launch.dynamic_smem)
    if math.prod(launch.cluster) > PORTABLE_CLUSTER:
        attribute = _FUNCTION.CU_FUNC_ATTRIBUTE_NON_PORTABLE_CLUSTER_SIZE_ALLOWED
        call(driver.cuFuncSetAttribute, function, attribute, 1)
    return function


def _local_bytes(function: Any) -> int:
    """Local memory of one thread. Raises: LocalMemory where it is more than can be cleared between samples."""
    size = int(call(driver.cuFuncGetAttribute, _FUNCTION.CU_FUNC_ATTRIBUTE_LOCAL_SIZE_BYTES, function))
    if size > MAX_LOCAL_BYTES:
        raise LocalMemory(f"a thread uses {size} bytes of local memory; at most {MAX_LOCAL_BYTES} are allowed")
    return size


def _parameter_bytes(function: Any) -> list[int]:
    """Sizes of the parameters that a kernel declares; the driver tells them one by one until there is no next."""
    sizes: list[int] = []
    while True:
        try:
            _, size = call(driver.cuFuncGetParamInfo, function, len(sizes))
        except DriverFault as fault:
            if fault.status != "CUDA_ERROR_INVALID_VALUE":
                raise
            return sizes
        sizes.append(int(size))
