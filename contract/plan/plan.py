"""The launch plan: how a candidate's device code is launched, as data.

The source contains the plan as a comment (`// cudal2: {...}` or `/* cudal2: {...} */`), so one file is the whole kernel.
`resolve.py` turns it into plain numbers for one task and one chip. Both backends launch only resolved plans.
"""

import json
import re
from typing import Annotated, Any, Literal

from pydantic import Field, ValidationError

from cudal2_agent.contract.base import Record
from cudal2_agent.contract.errors import PlanError
from cudal2_agent.contract.plan.library_call import LibraryCall, ResolvedCall
from cudal2_agent.contract.records.named_buffer import BufferElement, BufferName
from cudal2_agent.contract.records.task import AccumulatorType, Arch

Expression = int | str
ScalarType = Literal["i32", "u32", "i64", "f32", "f64"]
CompilerName = Literal["nvrtc", "nvcc"]

PORTABLE_CLUSTER = 8
MAX_DIMS = 5  # of a tensor map
MAX_NODES = 256  # launches, calls and repeats of a plan as written


class TensorArg(Record):
    """A pointer to the first element of a buffer of the task, or of the plan's scratch."""

    tensor: BufferName
    access: Literal["read", "write"] = "read"


class TensorPartArg(Record):
    """A pointer into a buffer, at a byte offset that is a multiple of its element's size."""

    tensor: BufferName
    offset_bytes: Expression
    access: Literal["read", "write"] = "read"


class TensorMapSpec(Record):
    """A TMA descriptor of one buffer as a matrix of its last dimension, or, where it has `dims`, as another view of its memory.

    `dims`, `box`: sizes in elements, the contiguous dimension first. `strides`: of all dimensions but the first, in elements;
    none where the view is dense. `offset_bytes`: where it begins. `element`: of the workspace, which has none of its own.
    """

    of: BufferName
    box: Annotated[tuple[int, ...], Field(min_length=1, max_length=MAX_DIMS)]
    swizzle: Literal[0, 32, 64, 128] = 0
    l2: Literal[0, 64, 128, 256] = 128
    dims: Annotated[tuple[Expression, ...], Field(max_length=MAX_DIMS, exclude_if=lambda dims: not dims)] = ()
    strides: Annotated[tuple[Expression, ...], Field(max_length=MAX_DIMS, exclude_if=lambda strides: not strides)] = ()
    offset_bytes: Annotated[Expression, Field(exclude_if=lambda offset: offset == 0)] = 0
    element: Annotated[BufferElement | None, Field(exclude_if=lambda element: element is None)] = None


class TensorMapArg(Record):
    """A 128-byte `__grid_constant__ const CUtensorMap` parameter."""

    tensor_map: TensorMapSpec


class WorkspaceArg(Record):
    """A pointer into the workspace at a byte offset, which is a multiple of 16."""

    workspace: Expression


class ScalarArg(Record):
    """A number. Those of type f32 and f64 may have a fraction."""

    scalar: int | Annotated[float, Field(allow_inf_nan=False)] | str
    type: ScalarType = "i32"


EntryName = Annotated[str, Field(pattern=r"^[A-Za-z_]\w{0,127}$")]
Arg = TensorArg | TensorPartArg | TensorMapArg | WorkspaceArg | ScalarArg


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


class Repeat(Record):
    """Nodes that run several times one after another; `I` counts from 0 in their expressions. Repeats are not nested."""

    repeat: Expression
    launches: Annotated[tuple[Launch | LibraryCall, ...], Field(min_length=1, max_length=MAX_NODES)]


class Scratch(Record):
    """A named buffer between launches. Its contents are unpredictable before each run."""

    name: BufferName
    shape: tuple[Expression, ...]
    element: BufferElement


class LaunchPlan(Record):
    """How a kernel is launched. `atomics`: results may differ between runs because sums are combined in arrival order.

    `launches`: nodes in the order in which they run. A plan of a matrix product has kernel launches only.
    `compiler`: nvcc for the headers of CuTe and CUTLASS, which NVRTC does not compile.
    """

    arch: Arch
    compiler: Annotated[CompilerName, Field(exclude_if=lambda name: name == "nvrtc")] = "nvrtc"
    launches: Annotated[tuple[Launch | LibraryCall | Repeat, ...], Field(min_length=1, max_length=MAX_NODES)]
    workspace: Workspace | None = None
    scratch: Annotated[tuple[Scratch, ...], Field(max_length=MAX_NODES, exclude_if=lambda scratch: not scratch)] = ()
    accumulate: AccumulatorType = AccumulatorType.F32
    requires: tuple[str, ...] = ()
    atomics: bool = False

    @property
    def kernels(self) -> tuple[Launch, ...]:
        """The kernel launches as they are written, those of repeats included."""
        return tuple(node for node in self._nodes if isinstance(node, Launch))

    @property
    def library_calls(self) -> tuple[LibraryCall, ...]:
        """The library calls as they are written, those of repeats included."""
        return tuple(node for node in self._nodes if isinstance(node, LibraryCall))

    @property
    def _nodes(self) -> tuple[Launch | LibraryCall, ...]:
        inner = (node.launches if isinstance(node, Repeat) else (node,) for node in self.launches)
        return tuple(node for nodes in inner for node in nodes)


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
    """A plan in plain numbers, with repeats written out. `sms`: SMs of the chip that it was resolved for; 0 where that is not
    known. `calls`: of library operations between the launches. `scratch`: with whole numbers as shapes.
    """

    launches: tuple[ResolvedLaunch, ...]
    workspace_bytes: int
    zero: bool | Literal["restored"]
    zero_bytes: int
    sms: int = 0
    calls: Annotated[tuple[ResolvedCall, ...], Field(exclude_if=lambda calls: not calls)] = ()
    scratch: Annotated[tuple[Scratch, ...], Field(exclude_if=lambda scratch: not scratch)] = ()


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
    containers = {error["loc"][:depth] for error in errors for depth in range(len(error["loc"]))}
    inner = [error for error in errors if error["loc"] not in containers]
    told = next((error for error in inner if error["type"] not in {"missing", "extra_forbidden"}), inner[0])
    return ".".join(str(part) for part in told["loc"]), told["msg"]


def render_plan(plan: LaunchPlan) -> str:
    """The comment block for the top of a source that contains the plan, one launch argument per line."""
    data = plan.model_dump(mode="json", exclude_defaults=True)
    lines = []
    for key, value in data.items():
        if key == "launches":
            lines.append(' "launches": [' + ",\n".join(map(_render_node, value)) + "]")
        else:
            lines.append(f" {json.dumps(key)}: {json.dumps(value)}")
    return "/* cudal2: {\n" + ",\n".join(lines) + "\n} */\n"


def _render_node(launch: dict[str, Any]) -> str:
    if "entry" not in launch:
        return json.dumps(launch)
    head = ", ".join(f"{json.dumps(key)}: {json.dumps(value)}" for key, value in launch.items() if key != "args")
    args = ",\n".join(f"   {json.dumps(arg)}" for arg in launch.get("args", ()))
    return "{" + head + ', "args": [\n' + args + "]}"
