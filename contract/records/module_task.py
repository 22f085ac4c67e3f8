"""The second kind of task: a PyTorch module, as KernelBench states them."""

from enum import StrEnum
from typing import Annotated, Any, Literal, Self

from pydantic import Discriminator, Field, Tag, model_validator

from cudal2_agent.contract.base import Record, digest
from cudal2_agent.contract.errors import UsageError
from cudal2_agent.contract.records.module_graph import Graph, Soundness
from cudal2_agent.contract.records.named_buffer import Buffer, BufferName, Role
from cudal2_agent.contract.records.task import Arch, GemmTask, TimingMode

WORKSPACE = "workspace"  # the name of a plan's own memory among the buffers that its launches point to
MAX_PROBLEM_BYTES = 256 * 1024


class Arithmetic(StrEnum):
    """The number format of matrix products and of stored tensors. f32 excludes TF32; tf32 stores f32.

    Sums of f16 and bf16 products accumulate in f32.
    """

    F32 = "f32"
    TF32 = "tf32"
    F16 = "f16"
    BF16 = "bf16"


class ModuleTask(Record):
    """What a problem file's `Model(*get_init_inputs())(*get_inputs())` computes.

    `name`: of the problem, such as `kernelbench:1/19`. `problem`: the text of its file. `dims`: the whole numbers that the
    file assigns at its top, under their names; other values of them give the same module at another size. `buffers`: inputs
    of `forward`, then parameters, states and outputs. `flops`: of matrix products and convolutions, a multiply-add counts as
    two. `own`: how the problem makes its inputs, parameters and states, by their names, in operators that draw numbers from a
    seeded generator and change their own tensors; None where that could not be recorded. `returns`: the form of forward's
    result: the name of an output, null, or `{"tuple": […]}`, `{"list": […]}`, `{"dict": {…}}` of such. `notes`: what was
    changed to make a task of the file, a sentence each. `frozen`: parameters never change, so that preparing them takes no
    time. `soundness`: None before it was looked at.
    """

    kind: Literal["module"] = "module"
    name: Annotated[str, Field(min_length=1, max_length=200)]
    problem: Annotated[str, Field(max_length=MAX_PROBLEM_BYTES)]
    dims: dict[BufferName, int] = {}
    buffers: Annotated[tuple[Buffer, ...], Field(min_length=1)]
    graph: Graph
    flops: int = 0
    own: Graph | None = None
    returns: Any = "out"
    notes: tuple[str, ...] = ()
    arithmetic: Arithmetic = Arithmetic.F32
    training: bool = False
    frozen: bool = False
    arch: Arch = Arch.SM_90A
    mode: TimingMode = TimingMode.OFFLINE
    soundness: Soundness | None = None

    @model_validator(mode="after")
    def _named_once(self) -> Self:
        names = [buffer.name for buffer in self.buffers]
        if len({*names, WORKSPACE}) <= len(names):
            raise ValueError(f"two buffers of a task have one name, or one is named {WORKSPACE}")
        written = {buffer.name for buffer in self.buffers if buffer.role.written}
        if not any(buffer.role is Role.OUTPUT for buffer in self.buffers) or set(self.graph.outputs) != written:
            raise ValueError("the graph must name a value for every output and state, and there must be an output")
        return self

    @property
    def id(self) -> str:
        """Of the problem, its sizes and how it is asked; the rest follows from these, or is what is known about the task."""
        return digest(self.model_dump(mode="json", exclude={"soundness", "graph", "flops", "own", "returns", "notes"}))

    @property
    def shape(self) -> str:
        """What tells it from other tasks in a line: its name."""
        return self.name

    @property
    def operand_bytes(self) -> int:
        """Bytes of all buffers: the minimum traffic through device memory."""
        return sum(buffer.bytes for buffer in self.buffers)

    @property
    def is_unsound(self) -> bool:
        """Whether wrong programs pass its tests, so that its times earn no reward."""
        return self.soundness is not None and self.soundness.status == "unsound"


def _kind(value: Any) -> str:
    """Of a task, or of JSON that may leave out defaults."""
    if isinstance(value, dict):
        return str(value.get("kind", "module" if "problem" in value else "gemm"))
    return str(getattr(value, "kind", ""))


Task = Annotated[Annotated[GemmTask, Tag("gemm")] | Annotated[ModuleTask, Tag("module")], Discriminator(_kind)]


def gemm(task: Task, what: str) -> GemmTask:
    """The task where it is a matrix product. `what`: what works on those only. Raises: UsageError."""
    if isinstance(task, GemmTask):
        return task
    raise UsageError(f"{what} works on matrix products only, and {task.name} is a module")
