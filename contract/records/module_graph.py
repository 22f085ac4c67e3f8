"""The operations of a module as data: what was traced from its problem file, in ATen's functional operators."""

from typing import Annotated, Any, Literal

from pydantic import Field

from cudal2_agent.contract.base import Record
from cudal2_agent.contract.records.named_buffer import BufferElement

MAX_NODES = 20_000
NodeName = Annotated[str, Field(pattern=r"^[A-Za-z_]\w{0,127}$")]


class TensorType(Record):
    """Shape and element of one value."""

    shape: tuple[int, ...]
    element: BufferElement


class GraphNode(Record):
    """One operation. `op`: `aten.relu.default`; `getitem` takes one result of an operation with several.

    `args`, `kwargs`: JSON. `{"node": "relu"}` is a value of the graph, by the name of the node or of the buffer that holds it;
    `{"dtype": "f32"}` an element type, `{"float": "-inf"}` a number that JSON lacks; lists, numbers, strings, booleans and
    null are themselves.
    `results`: one for most operations; of `getitem` the chosen one.
    """

    name: NodeName
    op: Annotated[str, Field(pattern=r"^(getitem|aten\.\w+\.\w+)$")]
    args: tuple[Any, ...] = ()
    kwargs: dict[str, Any] = {}
    results: Annotated[tuple[TensorType, ...], Field(min_length=1)]

    def inputs(self) -> list[str]:
        """Names of the values that the operation reads, in order, each once."""
        return list(dict.fromkeys(_names([*self.args, *self.kwargs.values()])))


class Graph(Record):
    """Operations in the order in which they run. Names of inputs, parameters and states are those of the task's buffers.

    `outputs`: by the output or state buffer, the value that it gets.
    """

    nodes: Annotated[tuple[GraphNode, ...], Field(max_length=MAX_NODES)]
    outputs: dict[str, NodeName]


def _names(values: list[Any]) -> list[str]:
    found: list[str] = []
    for value in values:
        match value:
            case {"node": str() as name}:
                found.append(name)
            case list() | tuple():
                found += _names(list(value))
    return found


# Why a task gives no reward, or that it may.
SoundnessStatus = Literal["sound", "unsound", "unchecked"]


class FalseAnswer(Record):
    """A wrong program that the tests of a task accept. `kind`: `zeros`, `constant`, `other-input`, `identity` or `dropped`.

    `on`: the inputs on which it passes: the problem's `own`, or `ours`. `operation`: the node that was left out.
    """

    kind: Literal["zeros", "constant", "other-input", "identity", "dropped"]
    on: Literal["own", "ours"]
    operation: str = ""


class Soundness(Record):
    """Whether the tests of a task tell wrong programs from right ones.

    `accepted`: wrong programs that passed; only what passes on `ours` makes the task unsound.
    """

    status: SoundnessStatus
    reason: str = ""
    accepted: tuple[FalseAnswer, ...] = ()
    seed: int = 0
