"""The operations of a module as data: what was traced from its problem file, in ATen's functional operators."""

from enum import StrEnum
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


_PREFIX = "aten."


class OperationClass(StrEnum):
    """In the order in which `classes_of` names them: what shapes a plan most comes first."""

    RECURRENCE = "recurrence"
    ATTENTION = "attention"
    CONVOLUTION = "convolution"
    PRODUCT = "product"
    SCAN = "scan"
    SOFTMAX = "softmax"
    NORM = "norm"
    POOL = "pool"
    REDUCTION = "reduction"
    MOVEMENT = "movement"
    POINTWISE = "pointwise"


_OPERATIONS = {
    OperationClass.RECURRENCE: "gru lstm rnn_tanh rnn_relu",
    OperationClass.ATTENTION: "scaled_dot_product_attention",
    OperationClass.CONVOLUTION: "convolution",
    OperationClass.PRODUCT: "mm addmm bmm baddbmm mv dot",
    OperationClass.SCAN: "cumsum cumprod cummax cummin logcumsumexp",
    OperationClass.SOFTMAX: "_softmax _log_softmax logsumexp",
    OperationClass.NORM: "native_layer_norm native_group_norm native_batch_norm linalg_vector_norm norm rms_norm "
    "_native_batch_norm_legit _native_batch_norm_legit_no_training _native_batch_norm_legit_functional",
    OperationClass.POOL: "max_pool2d_with_indices max_pool3d_with_indices avg_pool1d avg_pool2d avg_pool3d "
    "adaptive_avg_pool1d _adaptive_avg_pool2d _adaptive_avg_pool3d adaptive_max_pool2d adaptive_max_pool3d",
    OperationClass.REDUCTION: "sum mean amax amin max min argmax argmin prod var var_mean std any all nll_loss_forward",
    OperationClass.MOVEMENT: "permute cat gather index index_select embedding roll flip unfold constant_pad_nd scatter",
}
_CLASS_OF = {f"{_PREFIX}{name}": kind for kind, names in _OPERATIONS.items() for name in names.split()}
_VIEWS = "view reshape _unsafe_view unsqueeze squeeze expand select slice split_with_sizes transpose t alias detach"
_CONSTANTS = "full full_like empty arange scalar_tensor clone"
_NO_WORK = frozenset(f"{_PREFIX}{name}" for names in (_VIEWS, _CONSTANTS) for name in names.split())
_PERMUTE = "aten.permute.default"
_MULTIPLYING = frozenset({OperationClass.PRODUCT, OperationClass.CONVOLUTION, OperationClass.ATTENTION})
# Of two tensors, element by element; over a dimension these are reductions.
_OF_TWO_TENSORS = frozenset({"aten.max.other", "aten.min.other", "aten.maximum.default", "aten.minimum.default"})


def class_of(op: str) -> OperationClass | None:
    """Of an ATen operator such as `aten.relu.default`; None for one that computes and moves nothing by itself."""
    name = op.rpartition(".")[0]
    if op == "getitem" or name in _NO_WORK:
        return None
    return OperationClass.POINTWISE if op in _OF_TWO_TENSORS else _CLASS_OF.get(name, OperationClass.POINTWISE)


def classes_of(graph: Graph) -> tuple[OperationClass, ...]:
    """The classes of a graph's operations, each once, in the order of `OperationClass`.

    A permuted operand of a product moves nothing: whatever multiplies reads it in that order.
    """
    read_by_others = {name for node in graph.nodes if class_of(node.op) not in _MULTIPLYING for name in node.inputs()}
    read_by_others |= set(graph.outputs.values())
    found = {class_of(node.op) for node in graph.nodes if node.op != _PERMUTE or node.name in read_by_others}
    return tuple(kind for kind in OperationClass if kind in found)
