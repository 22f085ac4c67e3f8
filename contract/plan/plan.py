"""The launch plan: how a candidate's device code is launched, as data.

The source contains the plan as a comment (`// cudal2: {...}` or `/* cudal2: {...} */`), so one file is the whole kernel.
`resolve` turns it into plain numbers for one task and one chip. Both backends launch only resolved plans.
"""

import json
import re
from typing import Annotated, Any, Literal

from pydantic import Field, ValidationError

from cudal2_agent.contract.base import Record
from cudal2_agent.contract.errors import PlanError
from cudal2_agent.contract.plan.chip import ChipLimits
from cudal2_agent.contract.plan.expression import evaluate, holds
from cudal2_agent.contract.records.task import AccumulatorType, Arch, GemmTask

Expression = int | str
TensorName = Literal["A", "B", "D"]
ScalarType = Literal["i32", "u32", "i64", "f32"]

MAX_GRID = (2**31 - 1, 65535, 65535)
MAX_CTAS = 2**31 - 1  # per launch; a driver would accept more CTAs than a GPU can run in a day
MIN_CTAS = 2**20  # allowed for every task, for launches that prepare or clear memory
MAX_WORKSPACE_BYTES = 8 * 1024**3
MIN_WORKSPACE_BYTES = 64 * 1024**2  # allowed for every task: two partial tiles per SM of the largest chip
MAX_SPLITS = 32  # splits of K for which the workspace can hold the partial sums of D
_TILE = 512  # padded sizes of D are multiples of this
_K_OF_AN_INSTRUCTION = 16
PORTABLE_CLUSTER = 8


class TensorArg(Record):
    """A pointer to the first element of an operand."""

    tensor: TensorName
    access: Literal["read", "write"] = "read"


class TensorMapSpec(Record):
    """A TMA descriptor of one operand in its memory layout. `box`: (contiguous, strided) size in elements."""

    of: TensorName
    box: tuple[int, int]
    swizzle: Literal[0, 32, 64, 128] = 0
    l2: Literal[0, 64, 128, 256] = 128


class TensorMapArg(Record):
    """A 128-byte `__grid_constant__ const CUtensorMap` parameter."""

    tensor_map: TensorMapSpec


class WorkspaceArg(Record):
    """A pointer into the workspace at a byte offset, which is a multiple of 16."""

    workspace: Expression


class ScalarArg(Record):
    scalar: Expression
    type: ScalarType = "i32"


EntryName = Annotated[str, Field(pattern=r"^[A-Za-z_]\w{0,127}$")]
Arg = TensorArg | TensorMapArg | WorkspaceArg | ScalarArg


class Launch(Record):
    """One kernel launch. `programmatic`: launched with programmatic stream serialization after the preceding kernel."""

    entry: EntryName
    grid: tuple[Expression, Expression, Expression]
    block: tuple[Expression, Expression, Expression]
    cluster: tuple[int, int, int] = (1, 1, 1)
    dynamic_smem: Expression = 0
    programmatic: bool = False
    args: Annotated[tuple[Arg, ...], Field(max_length=64)] = ()


class Workspace(Record):
    """Scratch memory of a plan.

    `zero`: True zeroes it before every run, inside the timed region. "restored" zeroes it once; the kernel must leave the
    first `zero_bytes` (default: all) zero after every run, which verification checks.
    """

    bytes: Expression
    zero: bool | Literal["restored"] = False
    zero_bytes: Expression | None = None


class LaunchPlan(Record):
    """How a kernel is launched. `atomics`: results may differ between runs because sums are combined in arrival order."""

    arch: Arch
    launches: Annotated[tuple[Launch, ...], Field(min_length=1, max_length=8)]
    workspace: Workspace | None = None
    accumulate: AccumulatorType = AccumulatorType.F32
    requires: tuple[str, ...] = ()
    atomics: bool = False


class ResolvedLaunch(Record):
    """A launch in plain numbers. `args` keep their kind; whole numbers replace their expressions."""

    entry: EntryName
    grid: tuple[int, int, int]
    block: tuple[int, int, int]
    cluster: tuple[int, int, int]
    dynamic_smem: int
    programmatic: bool
    args: tuple[Arg, ...]


class ResolvedPlan(Record):
    """A plan in plain numbers. `sms`: SMs of the chip that it was resolved for; 0 where that is not known."""

    launches: tuple[ResolvedLaunch, ...]
    workspace_bytes: int
    zero: bool | Literal["restored"]
    zero_bytes: int
    sms: int = 0


def operand_shape(task: GemmTask, name: TensorName) -> tuple[int, int]:
    """(rows, columns) of an operand in memory, where columns are contiguous."""
    if name == "A":
        return (task.k, task.m) if task.layout.transposes_a else (task.m, task.k)
    if name == "B":
        return (task.n, task.k) if task.layout.transposes_b else (task.k, task.n)
    return task.m, task.n


def max_workspace_bytes(task: GemmTask) -> int:
    """Maximum size of a workspace: a copy of the operands in another layout, and f32 partial sums of `MAX_SPLITS` splits."""
    rows, columns = (-(-size // _TILE) * _TILE for size in (task.m, task.n))
    wanted = task.operand_bytes + 4 * rows * columns * MAX_SPLITS
    return min(MAX_WORKSPACE_BYTES, max(MIN_WORKSPACE_BYTES, wanted))


def max_ctas(task: GemmTask) -> int:
    """Maximum number of CTAs of a launch: one for each output and each K step of one instruction."""
    return min(MAX_CTAS, max(MIN_CTAS, task.m * task.n * -(-task.k // _K_OF_AN_INSTRUCTION)))


def parse_plan(source: str) -> LaunchPlan:
    """The launch plan in the `cudal2:` comment of a source. Raises: PlanError unless there is exactly one valid plan."""
    starts = [match.end() for match in re.finditer(r"(?://|/\*)\s*cudal2:\s*(?=\{)", source)]
    if len(starts) != 1:
        found = "no" if not starts else "more than one"
        raise PlanError("plan-missing", f"the source has {found} launch plan comment; write exactly one '// cudal2: {{...}}'")
    text = re.sub(r"(?m)^[ \t]*//", "", source[starts[0] :])
    try:
        data, _ = json.JSONDecoder().raw_decode(text)
    except (ValueError, RecursionError) as exc:  # ValueError also covers numbers of thousands of digits
        raise PlanError("plan-json", f"the launch plan is not JSON: {exc}") from exc
    return plan_from_json(data)


def plan_from_json(data: Any) -> LaunchPlan:
    """A launch plan from decoded JSON. Raises: PlanError that names a wrong field."""
    try:
        return LaunchPlan.model_validate(data)
    except ValidationError as exc:
        where, message = _most_telling(exc)
        raise PlanError("plan-schema", f"launch plan field {where!r}: {message}") from exc


def _most_telling(exc: ValidationError) -> tuple[str, str]:
    """Dotted field and message of the error that helps the author of the plan most.

    An error of a container that only repeats the errors of its items is skipped. pydantic tries an argument as every kind
    of argument, so a missing field of another kind is skipped as long as a present field is wrong.
    """
    errors = exc.errors(include_url=False)
    inner = [error for error in errors if not any(_lies_within(other["loc"], error["loc"]) for other in errors)]
    told = next((error for error in inner if error["type"] not in {"missing", "extra_forbidden"}), inner[0])
    return ".".join(str(part) for part in told["loc"]), told["msg"]


def _lies_within(inner: tuple[int | str, ...], outer: tuple[int | str, ...]) -> bool:
    return len(inner) > len(outer) and inner[: len(outer)] == outer


def render_plan(plan: LaunchPlan) -> str:
    """The comment block for the top of a source that contains the plan, one launch argument per line."""
    data = plan.model_dump(mode="json", exclude_defaults=True)
    lines = []
    for key, value in data.items():
        if key == "launches":
            lines.append(' "launches": [' + ",\n".join(_render_launch(launch) for launch in value) + "]")
        else:
            lines.append(f" {json.dumps(key)}: {json.dumps(value)}")
    return "/* cudal2: {\n" + ",\n".join(lines) + "\n} */\n"


def _render_launch(launch: dict[str, Any]) -> str:
    head = ", ".join(f"{json.dumps(key)}: {json.dumps(value)}" for key, value in launch.items() if key != "args")
    args = ",\n".join(f"   {json.dumps(arg)}" for arg in launch.get("args", ()))
    return "{" + head + ', "args": [\n' + args + "]}"


def resolve(plan: LaunchPlan, task: GemmTask, limits: ChipLimits, sms: int) -> ResolvedPlan:
    """The plan in plain numbers for one task and one chip, checked against all limits.

    Raises: PlanError with the rule that is broken.
    """
    names = {"M": task.m, "N": task.n, "K": task.k, "SMS": sms}
    if plan.arch.number > task.arch.number or (plan.arch.value.endswith("a") and plan.arch is not task.arch):
        raise PlanError("plan-arch", f"the plan is for {plan.arch}, the task for {task.arch}")
    if plan.accumulate is not task.accumulate:
        raise PlanError("plan-accumulate", f"the plan accumulates in {plan.accumulate}, the task asks {task.accumulate}")
    for condition in plan.requires:
        if not holds(condition, names):
            raise PlanError("plan-requires", f"the plan requires {condition}, which does not hold for {task.shape}")
    workspace_bytes, zero, zero_bytes = _workspace(plan.workspace, names, max_workspace_bytes(task))
    launches = tuple(_resolve_launch(launch, task, limits, names, workspace_bytes) for launch in plan.launches)
    writes = any(
        arg == TensorArg(tensor="D", access="write") or isinstance(arg, TensorMapArg) and arg.tensor_map.of == "D"
        for launch in launches
        for arg in launch.args
    )
    if not writes:
        raise PlanError(
            "plan-output",
            'no launch takes D for writing, so the result is never written; add "access": "write" or a tensor map of D',
        )
    return ResolvedPlan(launches=launches, workspace_bytes=workspace_bytes, zero=zero, zero_bytes=zero_bytes, sms=sms)


def _workspace(workspace: Workspace | None, names: dict[str, int], maximum: int) -> tuple[int, bool | Literal["restored"], int]:
    if workspace is None:
        return 0, False, 0
    size = evaluate(workspace.bytes, names)
    zero_bytes = size if workspace.zero_bytes is None else evaluate(workspace.zero_bytes, names)
    if not 0 <= size <= maximum:
        raise PlanError("plan-workspace", f"the workspace has {size} bytes; 0 to {maximum} are allowed for this task")
    if not 0 <= zero_bytes <= size:
        raise PlanError("plan-workspace", f"zero_bytes is {zero_bytes}, but the workspace has {size} bytes")
    return size, workspace.zero, zero_bytes if workspace.zero else 0


def _resolve_launch(
    launch: Launch, task: GemmTask, limits: ChipLimits, names: dict[str, int], workspace_bytes: int
) -> ResolvedLaunch:
    grid = _triple(launch.grid, names)
    block = _triple(launch.block, names)
    smem = evaluate(launch.dynamic_smem, names)
    _check_grid(launch.entry, grid, task)
    _check_geometry(launch.entry, grid, block, launch.cluster, smem, limits)
    if launch.programmatic and not limits.programmatic_launch:
        raise PlanError("plan-programmatic", f"{launch.entry}: {task.arch} does not support programmatic launch")
    args = tuple(_resolve_arg(arg, task, limits, names, workspace_bytes) for arg in launch.args)
    return ResolvedLaunch(
        entry=launch.entry,
        grid=grid,
        block=block,
        cluster=launch.cluster,
        dynamic_smem=smem,
        programmatic=launch.programmatic,
        args=args,
    )


def _triple(values: tuple[Expression, Expression, Expression], names: dict[str, int]) -> tuple[int, int, int]:
    x, y, z = (evaluate(value, names) for value in values)
    return x, y, z


def _check_grid(entry: str, grid: tuple[int, int, int], task: GemmTask) -> None:
    if any(not 1 <= size <= maximum for size, maximum in zip(grid, MAX_GRID, strict=True)):
        raise PlanError("plan-grid", f"{entry}: grid {grid} is outside 1..{MAX_GRID}")
    if (ctas := grid[0] * grid[1] * grid[2]) > max_ctas(task):
        raise PlanError("plan-grid", f"{entry}: grid {grid} has {ctas} CTAs; this task allows at most {max_ctas(task)}")


def _check_geometry(
    entry: str,
    grid: tuple[int, int, int],
    block: tuple[int, int, int],
    cluster: tuple[int, int, int],
    smem: int,
    limits: ChipLimits,
) -> None:
    threads = block[0] * block[1] * block[2]
    if min(block) < 1 or block[2] > 64 or threads > limits.max_threads_per_block:
        raise PlanError("plan-block", f"{entry}: block {block} is outside 1..{limits.max_threads_per_block} threads")
    ctas = cluster[0] * cluster[1] * cluster[2]
    if min(cluster) < 1 or ctas > limits.max_cluster:
        raise PlanError("plan-cluster", f"{entry}: cluster {cluster} exceeds {limits.max_cluster} CTAs")
    if any(size % part for size, part in zip(grid, cluster, strict=True)):
        raise PlanError("plan-cluster", f"{entry}: grid {grid} is not a multiple of cluster {cluster}")
    if not 0 <= smem <= limits.max_smem_per_block_bytes:
        raise PlanError(
            "plan-smem-limit",
            f"{entry}: {smem} bytes of shared memory; the chip allows {limits.max_smem_per_block_bytes}",
        )


def _resolve_arg(arg: Arg, task: GemmTask, limits: ChipLimits, names: dict[str, int], workspace_bytes: int) -> Arg:
    match arg:
        case TensorMapArg(tensor_map=spec):
            _check_tensor_map(spec, task, limits)
        case TensorArg(tensor="A" | "B" as name, access="write"):
            raise PlanError("plan-write-input", f"operand {name} is an input and may not be written")
        case WorkspaceArg():
            offset = evaluate(arg.workspace, names)
            if offset % 16 or not 0 <= offset < max(workspace_bytes, 1):
                raise PlanError("plan-workspace", f"workspace offset {offset} is unaligned or beyond {workspace_bytes} bytes")
            return WorkspaceArg(workspace=offset)
        case ScalarArg():
            value = evaluate(arg.scalar, names)
            low, high = {
                "i32": (-(2**31), 2**31),
                "u32": (0, 2**32),
                "i64": (-(2**63), 2**63),
                "f32": (-(2**24), 2**24),
            }[arg.type]
            if not low <= value < high:
                raise PlanError("plan-scalar", f"scalar {arg.scalar!r} is {value}, which does not fit {arg.type}")
            return ScalarArg(scalar=value, type=arg.type)
    return arg


def _check_tensor_map(spec: TensorMapSpec, task: GemmTask, limits: ChipLimits) -> None:
    if not limits.tensor_maps:
        raise PlanError("plan-tensor-map", f"{task.arch} does not support tensor maps")
    _, columns = operand_shape(task, spec.of)
    row_bytes, box_bytes = columns * 2, spec.box[0] * 2
    if row_bytes % 16:
        raise PlanError("plan-tensor-map", f"a row of {spec.of} is {row_bytes} bytes; TMA needs a multiple of 16")
    if not all(1 <= size <= 256 for size in spec.box) or box_bytes % 16:
        raise PlanError(
            "plan-tensor-map", f"box {spec.box} of {spec.of}: sizes must be 1 to 256, the inner one a multiple of 16 bytes"
        )
    if spec.swizzle and box_bytes > spec.swizzle:
        raise PlanError(
            "plan-tensor-map",
            f"box {spec.box} of {spec.of}: {box_bytes} inner bytes exceed the {spec.swizzle}-byte swizzle",
        )
