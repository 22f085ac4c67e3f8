"""What the tracer asks of its child and what comes back: JSON records in files of the scratch folder, never pickle."""

from typing import Annotated, Any, Literal

from pydantic import Field

from cudal2_agent.contract.base import Record
from cudal2_agent.contract.records.module_graph import Graph, Soundness
from cudal2_agent.contract.records.module_task import MAX_PROBLEM_BYTES, Arithmetic, ModuleTask
from cudal2_agent.contract.records.named_buffer import Buffer, BufferName

ANSWER = "answer.json"
MAX_ANSWER_BYTES = 64 * 1024**2


class TraceRequest(Record):
    """`dims`: sizes to trace at instead of the file's. `most_work`: shrink them until the module computes so few elements.
    `memory_bytes`: that the child may use beyond what it starts with.
    """

    problem: Annotated[str, Field(max_length=MAX_PROBLEM_BYTES)]
    dims: dict[BufferName, int] = {}
    arithmetic: Arithmetic = Arithmetic.F32
    training: bool = False
    most_work: int | None = None
    memory_bytes: int


class CheckRequest(Record):
    """Asks whether the tests of a task tell wrong programs from right ones. Its problem file is not run."""

    task: ModuleTask
    seed: int
    memory_bytes: int


class SoundnessFound(Record):
    """What was found."""

    answer: Literal["checked"] = "checked"
    soundness: Soundness


class TracedModule(Record):
    """The parts of a task, as `ModuleTask` has them. `dims`: all sizes of the file."""

    answer: Literal["traced"] = "traced"
    dims: dict[BufferName, int]
    buffers: tuple[Buffer, ...]
    graph: Graph
    own: Graph | None = None
    flops: int
    returns: Any
    notes: tuple[str, ...] = ()


class Untraceable(Record):
    """Why the file is no task, in one line; `log`: the traceback where the file itself failed."""

    answer: Literal["untraceable"] = "untraceable"
    reason: str
    log: str = ""


Answer = Annotated[TracedModule | SoundnessFound | Untraceable, Field(discriminator="answer")]
