"""From a launch plan to plain numbers: expressions evaluated for one task and one chip, repeats written out, limits checked."""

import math
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Literal

from cudal2_agent.contract.errors import PlanError
from cudal2_agent.contract.plan.chip import ChipLimits
from cudal2_agent.contract.plan.expression import evaluate, evaluate_decimal, holds
from cudal2_agent.contract.plan.library_call import LibraryCall, ResolvedCall, known, resolve_call
from cudal2_agent.contract.plan.plan import (
    Arg,
    Expression,
    Launch,
    LaunchPlan,
    Repeat,
    ResolvedLaunch,
    ResolvedPlan,
    ScalarArg,
    Scratch,
    TensorArg,
    TensorMapArg,
    TensorPartArg,
    Workspace,
    WorkspaceArg,
)
from cudal2_agent.contract.plan.tensor_view import resolve_map
from cudal2_agent.contract.records.module_task import WORKSPACE, Task
from cudal2_agent.contract.records.named_buffer import Buffer, Role
from cudal2_agent.contract.records.task import GemmTask

MAX_GRID = (2**31 - 1, 65535, 65535)
MAX_CTAS = 2**31 - 1  # per launch; a driver would accept more CTAs than a GPU can run in a day
MIN_CTAS = 2**20  # allowed for every task, for launches that prepare or clear memory
MAX_WORKSPACE_BYTES = 8 * 1024**3
MIN_WORKSPACE_BYTES = 64 * 1024**2  # allowed for every task: two partial tiles per SM of the largest chip
MAX_LAUNCHES = 8  # of a matrix product
MAX_WRITTEN_OUT = 8192  # launches and calls of a module
MAX_SPLITS = 32  # splits of K for which the workspace can hold the partial sums of D
_TILE = 512  # padded sizes of D are multiples of this
_K_OF_AN_INSTRUCTION = 16
# From the first to before the second. f32 holds whole numbers exactly up to 2^24; larger ones would be rounded.
_RANGES = {
    "i32": (-(2**31), 2**31),
    "u32": (0, 2**32),
    "i64": (-(2**63), 2**63),
    "f32": (-(2**24), 2**24),
    "f64": (-(2**53), 2**53),
}


def operand_shape(task: Task, name: str) -> tuple[int, int]:
    """(rows, columns) of a buffer in memory, where columns are contiguous."""
    if isinstance(task, GemmTask):  # asked for every schedule of a space
        rows, columns = (1, 1, *task.shapes[name])[-2:]
        return rows, columns
    return next(buffer for buffer in task.buffers if buffer.name == name).rows_and_columns


def max_workspace_bytes(task: Task) -> int:
    """Maximum size of a workspace: a copy of the buffers in another layout, and f32 partial sums of `MAX_SPLITS` splits of
    the outputs.
    """
    if isinstance(task, GemmTask):
        rows, columns = (-(-size // _TILE) * _TILE for size in (task.m, task.n))
        outputs = rows * columns
    else:
        outputs = sum(buffer.elements for buffer in task.buffers if buffer.role.written)
    return min(MAX_WORKSPACE_BYTES, max(MIN_WORKSPACE_BYTES, task.operand_bytes + 4 * outputs * MAX_SPLITS))


def max_ctas(task: Task) -> int:
    """Maximum number of CTAs of a launch: one for each output and each K step of one instruction; of a module, one for each
    element of its buffers.
    """
    if isinstance(task, GemmTask):
        wanted = task.m * task.n * -(-task.k // _K_OF_AN_INSTRUCTION)
    else:
        wanted = sum(buffer.elements for buffer in task.buffers)
    return min(MAX_CTAS, max(MIN_CTAS, wanted))


def resolve(plan: LaunchPlan, task: Task, limits: ChipLimits, sms: int) -> ResolvedPlan:
    """The plan in plain numbers for one task and one chip, checked against all limits.

    Raises: PlanError with the rule that is broken.
    """
    names = {**task.dims, "SMS": sms}
    if plan.arch.number > task.arch.number or (plan.arch.value.endswith("a") and plan.arch is not task.arch):
        raise PlanError("plan-arch", f"the plan is for {plan.arch}, the task for {task.arch}")
    _check_kind(plan, task)
    for condition in plan.requires:
        if not holds(condition, names):
            raise PlanError("plan-requires", f"the plan requires {condition}, which does not hold for {task.shape}")
    workspace_bytes, zero, zero_bytes = _workspace(plan.workspace, names, max_workspace_bytes(task))
    scratch = _scratch(plan.scratch, task, names)
    places = _Places(task, limits, {each.name: each for each in (*task.buffers, *scratch)}, workspace_bytes)
    launches, calls = list[ResolvedLaunch](), list[ResolvedCall]()
    for node, inner in _written_out(plan.launches, names):
        if isinstance(node, Launch):
            launches.append(_resolve_launch(node, places, inner))
        else:
            calls.append(ResolvedCall(before=len(launches), call=resolve_call(node, places.buffers, inner)))
    _check_outputs(task, launches, calls)
    return ResolvedPlan(
        launches=tuple(launches),
        workspace_bytes=workspace_bytes,
        zero=zero,
        zero_bytes=zero_bytes,
        sms=sms,
        calls=tuple(calls),
        scratch=tuple(Scratch(name=each.name, shape=each.shape, element=each.element) for each in scratch),
    )


@dataclass(frozen=True)
class _Places:
    """What arguments may point to."""

    task: Task
    limits: ChipLimits
    buffers: Mapping[str, Buffer]
    workspace_bytes: int


def _check_kind(plan: LaunchPlan, task: Task) -> None:
    """What only one kind of task has. Raises: PlanError."""
    if not plan.kernels:
        raise PlanError("plan-launches", "the plan launches no kernel; library calls alone are no candidate")
    if not isinstance(task, GemmTask):
        return
    if plan.accumulate is not task.accumulate:
        raise PlanError("plan-accumulate", f"the plan accumulates in {plan.accumulate}, the task asks {task.accumulate}")
    if plan.scratch or not all(isinstance(node, Launch) for node in plan.launches):
        raise PlanError("plan-launches", "a matrix product has kernel launches and a workspace: no calls, repeats or scratch")
    if any(isinstance(arg, TensorPartArg) for launch in plan.kernels for arg in launch.args):
        raise PlanError("plan-tensor", "a matrix product's kernels take whole operands and not parts of them")
    if len(plan.launches) > MAX_LAUNCHES:
        raise PlanError("plan-launches", f"{len(plan.launches)} launches; a matrix product has at most {MAX_LAUNCHES}")


def _scratch(scratch: Sequence[Scratch], task: Task, names: Mapping[str, int]) -> list[Buffer]:
    taken = {WORKSPACE, *(buffer.name for buffer in task.buffers)}
    found: list[Buffer] = []
    for each in scratch:
        if each.name in taken:
            raise PlanError("plan-scratch", f"two buffers are named {each.name}, or it is the name of the workspace")
        taken.add(each.name)
        shape = tuple(evaluate(size, names) for size in each.shape)
        if min(shape, default=1) < 1:
            raise PlanError("plan-scratch", f"{each.name} has the shape {shape}; sizes must be positive")
        found.append(Buffer(name=each.name, shape=shape, element=each.element, role=Role.STATE))
    if (total := sum(buffer.bytes for buffer in found)) > (most := max_scratch_bytes(task)):
        raise PlanError("plan-scratch", f"scratch takes {total} bytes; at most {most} are allowed for this task")
    return found


def max_scratch_bytes(task: Task) -> int:
    """Maximum size of all scratch together: every value of the module's graph in f32, and as much as a workspace may have."""
    if isinstance(task, GemmTask):
        return 0
    values = sum(4 * math.prod(result.shape) for node in task.graph.nodes for result in node.results)
    return values + max_workspace_bytes(task)


def _written_out(
    nodes: Sequence[Launch | LibraryCall | Repeat], names: Mapping[str, int]
) -> Iterator[tuple[Launch | LibraryCall, Mapping[str, int]]]:
    """Every launch and call in order, with the names of its expressions. Raises: PlanError."""
    written = 0
    for node in nodes:
        times = evaluate(node.repeat, names) if isinstance(node, Repeat) else 1
        if not 1 <= times <= MAX_WRITTEN_OUT:
            raise PlanError("plan-repeat", f"a repeat runs {times} times; 1 to {MAX_WRITTEN_OUT} are allowed")
        inner = node.launches if isinstance(node, Repeat) else (node,)
        written += times * len(inner)
        if written > MAX_WRITTEN_OUT:
            raise PlanError(
                "plan-repeat", f"the plan has more than {MAX_WRITTEN_OUT} launches and calls, with repeats written out"
            )
        for index in range(times):
            for each in inner:
                yield each, {**names, "I": index} if isinstance(node, Repeat) else names


def _check_outputs(task: Task, launches: Sequence[ResolvedLaunch], calls: Sequence[ResolvedCall]) -> None:
    """Raises: PlanError where an output or a state is never written."""
    written = {each.call.out.tensor for each in calls}
    for arg in (arg for launch in launches for arg in launch.args):
        match arg:
            case TensorArg(tensor=name, access="write") | TensorPartArg(tensor=name, access="write"):
                written.add(name)
            case TensorMapArg(tensor_map=spec):
                written.add(spec.of)
    for buffer in task.buffers:
        if buffer.role.written and buffer.name not in written:
            raise PlanError(
                "plan-output",
                f"no launch takes {buffer.name} for writing, so the result is never written; "
                f'add "access": "write" or a tensor map of {buffer.name}',
            )


def _workspace(
    workspace: Workspace | None, names: Mapping[str, int], maximum: int
) -> tuple[int, bool | Literal["restored"], int]:
    if workspace is None:
        return 0, False, 0
    size = evaluate(workspace.bytes, names)
    zero_bytes = size if workspace.zero_bytes is None else evaluate(workspace.zero_bytes, names)
    if not 0 <= size <= maximum:
        raise PlanError("plan-workspace", f"the workspace has {size} bytes; 0 to {maximum} are allowed for this task")
    if not 0 <= zero_bytes <= size:
        raise PlanError("plan-workspace", f"zero_bytes is {zero_bytes}, but the workspace has {size} bytes")
    return size, workspace.zero, zero_bytes if workspace.zero else 0


def _resolve_launch(launch: Launch, places: _Places, names: Mapping[str, int]) -> ResolvedLaunch:
    grid = _triple(launch.grid, names)
    block = _triple(launch.block, names)
    smem = evaluate(launch.dynamic_smem, names)
    _check_grid(launch.entry, grid, places.task)
    _check_geometry(launch.entry, grid, block, launch.cluster, smem, places.limits)
    if launch.programmatic and not places.limits.programmatic_launch:
        raise PlanError("plan-programmatic", f"{launch.entry}: {places.task.arch} does not support programmatic launch")
    args = tuple(_resolve_arg(arg, places, names) for arg in launch.args)
    return ResolvedLaunch(
        entry=launch.entry,
        grid=grid,
        block=block,
        cluster=launch.cluster,
        dynamic_smem=smem,
        programmatic=launch.programmatic,
        args=args,
    )


def _triple(values: tuple[Expression, Expression, Expression], names: Mapping[str, int]) -> tuple[int, int, int]:
    x, y, z = (evaluate(value, names) for value in values)
    return x, y, z


def _check_grid(entry: str, grid: tuple[int, int, int], task: Task) -> None:
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


def _resolve_arg(arg: Arg, places: _Places, names: Mapping[str, int]) -> Arg:
    match arg:
        case TensorMapArg(tensor_map=spec):
            if not places.limits.tensor_maps:
                raise PlanError("plan-tensor-map", f"{places.task.arch} does not support tensor maps")
            most = places.limits.max_smem_per_block_bytes
            return TensorMapArg(tensor_map=resolve_map(spec, places.buffers, places.workspace_bytes, most, names))
        case TensorArg(tensor=name, access=access):
            _check_access(known(name, places.buffers), access)
        case TensorPartArg(tensor=name, access=access):
            buffer, offset = known(name, places.buffers), evaluate(arg.offset_bytes, names)
            _check_access(buffer, access)
            if offset % buffer.element.bytes or not 0 <= offset < max(buffer.bytes, 1):
                raise PlanError("plan-tensor", f"offset {offset} of {name} is unaligned or beyond its {buffer.bytes} bytes")
            return arg.model_copy(update={"offset_bytes": offset})
        case WorkspaceArg():
            offset = evaluate(arg.workspace, names)
            if offset % 16 or not 0 <= offset < max(places.workspace_bytes, 1):
                raise PlanError(
                    "plan-workspace", f"workspace offset {offset} is unaligned or beyond {places.workspace_bytes} bytes"
                )
            return WorkspaceArg(workspace=offset)
        case ScalarArg():
            return ScalarArg(scalar=_scalar(arg, names), type=arg.type)
    return arg


def _check_access(buffer: Buffer, access: Literal["read", "write"]) -> None:
    if access == "write" and not buffer.role.written:
        raise PlanError("plan-write-input", f"operand {buffer.name} is an input and may not be written")


def _scalar(arg: ScalarArg, names: Mapping[str, int]) -> int | float:
    """A whole number stays one, so that every bit of it arrives."""
    value: int | float
    if arg.type in ("f32", "f64"):
        value = evaluate_decimal(arg.scalar, names)
        value = int(value) if value == int(value) else value
    elif isinstance(arg.scalar, float):
        raise PlanError("plan-scalar", f"scalar {arg.scalar!r} is no whole number, as {arg.type} needs")
    else:
        value = evaluate(arg.scalar, names)
    low, high = _RANGES[arg.type]
    if not low <= value < high:
        raise PlanError("plan-scalar", f"scalar {arg.scalar!r} is {value}, which does not fit {arg.type}")
    return value
