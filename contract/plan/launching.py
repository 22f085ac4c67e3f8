"""The parts of a launcher that all launchers share: parameters as bytes, edges between launches, zeroing."""

import math
import struct
from collections.abc import Callable, Mapping, Sequence

from cudal2_agent.contract.plan.plan import (
    Arg,
    ResolvedPlan,
    ScalarArg,
    TensorArg,
    TensorMapArg,
    TensorMapSpec,
    TensorPartArg,
    WorkspaceArg,
)

TENSOR_MAP_BYTES = 128
_SCALAR_FORMAT = {"i32": "<i", "u32": "<I", "i64": "<q", "f32": "<f", "f64": "<d"}


def pack_argument(arg: Arg, pointers: Mapping[str, int], encode_map: Callable[[TensorMapSpec], bytes]) -> bytes:
    """One kernel parameter as the bytes the device will see. `pointers`: by buffer; also `workspace`, where there is one."""
    match arg:
        case TensorMapArg(tensor_map=spec):
            return encode_map(spec)
        case TensorArg(tensor=name):
            return struct.pack("<Q", pointers[name])
        case TensorPartArg(tensor=name, offset_bytes=offset):
            return struct.pack("<Q", pointers[name] + int(offset))
        case WorkspaceArg(workspace=offset):
            return struct.pack("<Q", pointers.get("workspace", 0) + int(offset))
        case ScalarArg(scalar=value, type=kind):
            return struct.pack(_SCALAR_FORMAT[kind], value)


def argument_bytes(arg: Arg) -> int:
    """Size of one kernel parameter."""
    match arg:
        case TensorMapArg():
            return TENSOR_MAP_BYTES
        case ScalarArg(type=kind):
            return struct.calcsize(_SCALAR_FORMAT[kind])
        case _:
            return struct.calcsize("<Q")


def aligned_offsets(sizes: Sequence[int]) -> list[int]:
    """Offset of every value, each at its natural alignment (64 for a tensor map), and at the end the size of all."""
    offsets, end = [], 0
    for size in sizes:
        alignment = 64 if size == TENSOR_MAP_BYTES else size
        start = math.ceil(end / alignment) * alignment
        offsets.append(start)
        end = start + size
    return [*offsets, end]


def zeroes_every_run(plan: ResolvedPlan) -> bool:
    """Whether a memset precedes the first launch of every run."""
    return plan.zero is True and plan.zero_bytes > 0


def programmatic_edges(plan: ResolvedPlan) -> list[bool]:
    """For each launch, whether it is launched with programmatic serialization.

    A programmatic edge leads from a kernel to a kernel. After the workspace's memset the first launch depends on a memset
    node, which triggers nothing, so it is launched without the attribute. Its `griddepcontrol.wait` then returns at once,
    because the memset has waited for the preceding kernel, and a graph capture sees no programmatic edge that it would
    refuse. The same holds after a library call, whose kernels may trigger whenever they like.
    """
    after = {each.before for each in plan.calls} | ({0} if zeroes_every_run(plan) else set())
    return [launch.programmatic and index not in after for index, launch in enumerate(plan.launches)]
