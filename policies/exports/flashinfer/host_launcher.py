"""The host side of a kernel as C++ for TVM-FFI, written from its launch plan.

The text is `host_launcher.cu` with the numbers of one resolved plan. It makes the launches that the sandbox makes: the same
grids, clusters, shared memory, tensor maps, scalars, zeroing and programmatic edges.
Covered: every launch plan.
Not covered: kernels with internal linkage, which another file cannot name; compiler flags other than macros, because
flashinfer-bench passes none (`lost_flags`).
"""

import itertools
import re
from collections.abc import Iterator, Mapping
from functools import cache
from importlib.resources import files
from string import Template

from cudal2_agent.contract.plan.chip import LIMITS, Chip
from cudal2_agent.contract.plan.plan import (
    PORTABLE_CLUSTER,
    Arg,
    LaunchPlan,
    ResolvedLaunch,
    ScalarArg,
    TensorArg,
    TensorMapArg,
    TensorMapSpec,
    TensorPartArg,
    WorkspaceArg,
)
from cudal2_agent.contract.plan.resolve import operand_shape, resolve
from cudal2_agent.contract.plan.tensor_view import map_layout
from cudal2_agent.contract.records.candidate import Candidate
from cudal2_agent.contract.records.module_task import WORKSPACE
from cudal2_agent.contract.records.named_buffer import Buffer, BufferElement
from cudal2_agent.contract.records.task import Arch, ElementType, GemmTask

OUTPUT = "C"  # the name that GEMM definitions of flashinfer-bench give to D
KERNEL, DEVICE, LAUNCHER = "kernel.cuh", "kernel.cu", "launch.cu"
ENTRY_POINT = f"{LAUNCHER}::run"

_DLPACK_CODE = {ElementType.F16: "kDLFloat", ElementType.BF16: "kDLBfloat"}
_MAP_TYPE = {
    BufferElement.F16: "FLOAT16",
    BufferElement.BF16: "BFLOAT16",
    BufferElement.F32: "FLOAT32",
    BufferElement.F64: "FLOAT64",
    BufferElement.U8: "UINT8",
    BufferElement.BOOL: "UINT8",
    BufferElement.I32: "INT32",
    BufferElement.I64: "INT64",
}
_SWIZZLE = {size: f"CU_TENSOR_MAP_SWIZZLE_{f'{size}B' if size else 'NONE'}" for size in (0, 32, 64, 128)}
_PROMOTION = {size: f"CU_TENSOR_MAP_L2_PROMOTION_{f'L2_{size}B' if size else 'NONE'}" for size in (0, 64, 128, 256)}
_SCALAR = {"i32": "int32_t", "u32": "uint32_t", "i64": "int64_t", "f32": "float"}
_FEATURE = {Arch.SM_90A: "__CUDA_ARCH_FEAT_SM90_ALL", Arch.SM_100A: "__CUDA_ARCH_FEAT_SM100_ALL"}
# Flags without effect on the code, and the standard that TVM-FFI compiles for.
_NEUTRAL = re.compile(r"-lineinfo|--generate-line-info|--?diag-suppress=[\d,]+|--?std=c\+\+17")
_MACRO = re.compile(r"-D(\w+)(?:=(.*))?", re.DOTALL)


def lost_flags(candidate: Candidate) -> tuple[str, ...]:
    """The compiler flags of a candidate that sources cannot carry."""
    return tuple(flag for flag in candidate.flags if not _MACRO.fullmatch(flag) and not _NEUTRAL.fullmatch(flag))


def arch_list(arch: Arch) -> str:
    """An architecture as `TVM_FFI_CUDA_ARCH_LIST` names it, such as 9.0a."""
    number, suffix = arch.number, "a" if arch.value.endswith("a") else ""
    return f"{number // 10}.{number % 10}{suffix}"


def device_text(candidate: Candidate, arch: Arch) -> str:
    """The file that compiles the kernel: the macros of its flags, then the kernel itself."""
    macros = ["#define NDEBUG", *(_define(match) for flag in candidate.flags if (match := _MACRO.fullmatch(flag)))]
    guard = []
    if feature := _FEATURE.get(arch):
        guard = [
            f"#if defined(__CUDA_ARCH__) && !defined({feature})",
            f'#error "this kernel is for {arch}: set TVM_FFI_CUDA_ARCH_LIST={arch_list(arch)} and build again"',
            "#endif",
        ]
    return "\n".join([*macros, *guard, f'#include "{KERNEL}"', ""])


def _define(match: re.Match[str]) -> str:
    """The line for -DNAME, which means 1, or -DNAME=VALUE."""
    name, value = match.groups()
    return f"#define {name} {'1' if value is None else value}".rstrip()


def launcher_text(candidate: Candidate, task: GemmTask, chip: Chip) -> str:
    """The host launcher of a candidate for a task on a chip. Raises: PlanError where its plan does not fit them."""
    plan = resolve(candidate.plan, task, LIMITS[task.arch], chip.sms)
    entries = sorted({launch.entry for launch in plan.launches})
    buffers = {buffer.name: buffer for buffer in task.buffers}
    shapes = {name: ", ".join(str(size) for size in operand_shape(task, name)) for name in ("A", "B", "D")}
    zero_every_run = plan.zero is True and plan.zero_bytes > 0
    edges = (launch.programmatic and not (index == 0 and zero_every_run) for index, launch in enumerate(plan.launches))
    return _template().substitute(
        title=f"Host launcher of a GEMM of M = {task.m}, N = {task.n}, K = {task.k}, planned for {chip.sms} SMs ({task.arch}).",
        entries="\n".join(f'extern "C" void {_symbol(entry)}() __asm__("{entry}");' for entry in entries),
        element=task.element.value,
        element_code=_DLPACK_CODE[task.element],
        sms=chip.sms if _uses_sms(candidate.plan) else 0,
        workspace_bytes=plan.workspace_bytes,
        zero_bytes=plan.zero_bytes,
        zero_every_run=str(zero_every_run).lower(),
        portable_cluster=PORTABLE_CLUSTER,
        output=OUTPUT,
        a_shape=shapes["A"],
        b_shape=shapes["B"],
        d_shape=shapes["D"],
        launches="\n".join(itertools.chain.from_iterable(map(_launch_lines, plan.launches, edges, itertools.repeat(buffers)))),
    )


def _uses_sms(plan: LaunchPlan) -> bool:
    """Whether a size of the plan may depend on the number of SMs, so that it fits one kind of chip only."""
    return "SMS" in plan.model_dump_json()


@cache
def _template() -> Template:
    return Template(files(__package__).joinpath("host_launcher.cu").read_text(encoding="utf-8"))


def _symbol(entry: str) -> str:
    """A name of our own, because an entry may be called like a function of the C library, or have a mangled name."""
    return f"cudal2_entry_{entry}"


def _launch_lines(launch: ResolvedLaunch, programmatic: bool, buffers: Mapping[str, Buffer]) -> Iterator[str]:
    names = [f"argument{index}" for index in range(len(launch.args))]
    yield "  {"
    for name, arg in zip(names, launch.args, strict=True):
        yield f"    {_argument(name, arg, buffers)}"
    pointers = "".join(f"&{name}, " for name in names)
    yield f"    void* arguments[] = {{{pointers}nullptr}};"
    grid, block, cluster = (f"dim3({x}, {y}, {z})" for x, y, z in (launch.grid, launch.block, launch.cluster))
    shape = f"{grid}, {block}, {cluster}, {launch.dynamic_smem}, {str(programmatic).lower()}"
    yield f"    launch(&{_symbol(launch.entry)}, {shape}, arguments, stream);"
    yield "  }"


def _argument(name: str, arg: Arg, buffers: Mapping[str, Buffer]) -> str:
    """The declaration of one kernel parameter."""
    match arg:
        case TensorArg(tensor=operand):
            return f"void* {name} = {operand}.data_ptr();"
        case TensorPartArg():
            raise TypeError("a plan of a matrix product points to whole operands")
        case TensorMapArg(tensor_map=spec):
            return f"alignas(64) CUtensorMap {name} = {_map_call(spec, buffers)};"
        case WorkspaceArg(workspace=offset):
            return f"void* {name} = workspace + {offset};" if offset else f"void* {name} = workspace;"
        case ScalarArg(scalar=value, type=kind):
            return f"{_SCALAR[kind]} {name} = {_literal(int(value), kind)};"


def _map_call(spec: TensorMapSpec, buffers: Mapping[str, Buffer]) -> str:
    offset, element, sizes, strides = map_layout(spec, buffers)
    memory = "workspace" if spec.of == WORKSPACE else f"{spec.of}.data_ptr()"
    memory = f"static_cast<std::byte*>({memory}) + {offset}" if offset else memory
    lists = ", ".join(f"{{{', '.join(map(str, numbers))}}}" for numbers in (sizes, (*strides, 0), spec.box))
    kind = f"CU_TENSOR_MAP_DATA_TYPE_{_MAP_TYPE[element]}"
    return f"tensor_map({kind}, {memory}, {lists}, {_SWIZZLE[spec.swizzle]}, {_PROMOTION[spec.l2]})"


def _literal(value: int, kind: str) -> str:
    """A C++ literal; the smallest integers have none, so they are written as differences."""
    if kind == "f32":
        return f"{value}.0f"
    if value in (-(2**31), -(2**63)):
        return f"{_literal(value + 1, kind)} - 1"
    return f"{value}{'LL' if kind == 'i64' else 'u' if kind == 'u32' else ''}"
