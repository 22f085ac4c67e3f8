"""Classes of a module's operations, by the kind of kernel that computes them: for prompts, look-ups and results."""

from enum import StrEnum

from cudal2_agent.contract.records.module_graph import Graph

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
