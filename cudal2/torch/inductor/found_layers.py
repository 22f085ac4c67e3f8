"""Layers in a graph of PyTorch's own calls that one operator may compute: found by their operations, and replaced.

Covered: `F.linear` whose output only goes into an activation; and gated layers, activation(x·gate) · (x·up) with the factors in
either order, of two `F.linear` of one x or of the halves of one by `chunk`, `split`, `narrow` or slices.
Not covered: a gated layer with a bias; two `F.linear` between which anything else is computed, which might change an operand.
"""

import operator
from typing import Any, NamedTuple

import torch
from torch.fx import Graph, Node
from torch.nn import functional

from cudal2_agent.contract.records.task import Activation

_GELU = {"none": Activation.GELU, "tanh": Activation.GELU_TANH}
_OTHERS: dict[Any, Activation] = {
    functional.silu: Activation.SILU,
    **dict.fromkeys((functional.relu, torch.relu, torch.relu_, "relu", "relu_"), Activation.RELU),
}
_PRODUCTS = (operator.mul, operator.imul, torch.mul, torch.multiply, "mul", "mul_", "multiply", "multiply_")
_PARTS = (torch.chunk, torch.split, torch.functional.split, "chunk", "split")  # each gives a tuple
_NARROWS = (torch.narrow, "narrow")
_CALLS = ("call_function", "call_method")


class WeightRows(NamedTuple):
    """A weight, or some rows of it: `number` of them from `start` on; None for all."""

    node: Node
    start: int = 0
    number: int | None = None


class FoundLayer(NamedTuple):
    """Operations of a graph that are one layer. `up`: of a gated layer. `last`: whose value is the layer's.

    `at`: where the operands are as the operations read them. `inner`: the others, each before what it uses.
    """

    last: Node
    at: Node
    inner: tuple[Node, ...]
    activation: Activation
    x: Node
    weight: WeightRows
    bias: Node | None = None
    up: WeightRows | None = None


class _LinearPart(NamedTuple):
    """A factor of a gated layer before its activation: the output of a linear layer, or a half of it.

    `inner`: the nodes from the linear layer's output on.
    """

    linear: Node
    x: Node
    rows: WeightRows
    inner: tuple[Node, ...] = ()


def gated_layer_of(node: Node) -> FoundLayer | None:
    """The gated layer whose result a node is."""
    if node.op not in _CALLS or node.target not in _PRODUCTS or len(node.args) != 2 or node.kwargs:
        return None
    left, right = node.args
    if not isinstance(left, Node) or not isinstance(right, Node):
        return None
    return _gated(node, left, right) or _gated(node, right, left)


def activated_layer_of(node: Node) -> FoundLayer | None:
    """The linear layer whose activation a node is."""
    activation, linear = _activation_of(node), _input_of(node)
    operands = _operands_of(linear)
    if activation is None or operands is None or linear is None or len(linear.users) != 1:
        return None
    x, weight, bias = operands
    return FoundLayer(node, linear, (linear,), activation, x, WeightRows(weight), bias)


def replace(graph: Graph, layer: FoundLayer) -> None:
    """The operator stands where the operands were read, which may change after it."""
    with graph.inserting_before(layer.at):
        weight = _rows(graph, layer.weight)
        if layer.up is None:
            arguments = layer.x, weight, layer.bias, layer.activation.value
            made = graph.call_function(torch.ops.cudal2.linear_activation.default, arguments)
        else:
            gated = layer.x, weight, _rows(graph, layer.up), layer.activation.value
            made = graph.call_function(torch.ops.cudal2.gated_linear.default, gated)
    made.meta = dict(layer.last.meta)
    layer.last.replace_all_uses_with(made)
    for node in (layer.last, *layer.inner):
        graph.erase_node(node)


def _rows(graph: Graph, rows: WeightRows) -> Node:
    return rows.node if rows.number is None else graph.call_function(torch.narrow, (rows.node, 0, rows.start, rows.number))


def _gated(node: Node, activated: Node, other: Node) -> FoundLayer | None:
    """`activated`: the factor that is an activation."""
    activation, before = _activation_of(activated), _input_of(activated)
    if activation is None or before is None or any(len(one.users) != 1 for one in (activated, before, other)):
        return None
    gate, up = _sums_of(before), _sums_of(other)
    if gate is None or up is None or gate.x is not up.x:
        return None
    if gate.linear is up.linear:
        if not _halves(gate, up):
            return None
        inner = *dict.fromkeys((activated, *gate.inner[:1], *up.inner[:1], *gate.inner[1:], *up.inner[1:])), gate.linear
        return FoundLayer(node, gate.linear, inner, activation, gate.x, gate.rows, up=up.rows)
    at = _later(gate.linear, up.linear, activated)
    if at is None or gate.inner or up.inner:
        return None
    return FoundLayer(node, at, (activated, gate.linear, up.linear), activation, gate.x, gate.rows, up=up.rows)


def _halves(gate: _LinearPart, up: _LinearPart) -> bool:
    """Whether two parts of one layer's output are its two halves, and nothing else is made of it."""
    width, (first, second) = _value(gate.linear).shape[-1], sorted((gate.rows, up.rows), key=lambda one: one.start)
    if first.start != 0 or not first.number == second.number == second.start or width != 2 * second.start:
        return False
    parts, inner = {gate.inner[-1], up.inner[-1]}, {*gate.inner, *up.inner}
    return set(gate.linear.users) == parts and all(set(one.users) <= inner for one in parts if one.target in _PARTS)


def _later(first: Node, second: Node, activated: Node) -> Node | None:
    """The later of two linear layers; None where between them anything is computed but the activation."""
    for one, other in ((first, second), (second, first)):
        after = one.next
        while after.op in ("placeholder", "get_attr") or after is activated:
            after = after.next
        if after is other:
            return other
    return None


def _sums_of(node: Node) -> _LinearPart | None:
    """None for what is neither a linear layer without a bias nor columns of one."""
    operands = _operands_of(node)
    if operands is not None:
        x, weight, bias = operands
        return None if bias is not None else _LinearPart(node, x, WeightRows(weight))
    if node.op not in _CALLS:
        return None
    source = _input_of(node)
    inner: tuple[Node, ...] = (node,)
    if node.target is operator.getitem and source is not None and source.target in _PARTS:
        inner, source = (node, source), _input_of(source)
    elif node.target is operator.getitem:
        if source is None or not _cuts_columns(node.args[1], _value(source)):
            return None
    elif node.target not in _NARROWS:
        return None
    found = _operands_of(source)
    columns = None if source is None else _columns(_value(node), _value(source))
    if found is None or found[2] is not None or source is None or columns is None:
        return None
    return _LinearPart(source, found[0], WeightRows(found[1], *columns), inner)


def _cuts_columns(index: Any, value: Any) -> bool:
    """Whether an index takes all of a tensor but for its last dimension, and slices that."""
    index = index if isinstance(index, tuple) else (index,)
    if not index or not isinstance(value, torch.Tensor):
        return False
    whole = all(one is Ellipsis or one == slice(None) for one in index[:-1])
    reaches = sum(one is not Ellipsis for one in index) == value.dim() or index[0] is Ellipsis
    return whole and reaches and isinstance(index[-1], slice)


def _columns(part: Any, whole: Any) -> tuple[int, int] | None:
    """First and number of the columns of a matrix that a view of it has; None for another view. Sizes may be symbols."""
    if not isinstance(part, torch.Tensor) or not isinstance(whole, torch.Tensor) or part.dim() != whole.dim():
        return None
    start, count, width = part.storage_offset() - whole.storage_offset(), part.shape[-1], whole.shape[-1]
    if not all(isinstance(one, int) for one in (start, count, width, part.stride(-1))):
        return None
    return (start, count) if part.stride(-1) == 1 and count < width else None


def _value(node: Node) -> Any:
    return node.meta.get("example_value")


def _operands_of(node: Node | None) -> tuple[Node, Node, Node | None] | None:
    """x, the weight and the bias of a linear layer; None for another node."""
    if node is None or node.op != "call_function" or node.target is not functional.linear:
        return None
    given = dict(zip(("input", "weight", "bias"), node.args, strict=False)) | node.kwargs
    x, weight, bias = (given.get(name) for name in ("input", "weight", "bias"))
    if not isinstance(x, Node) or not isinstance(weight, Node) or not (bias is None or isinstance(bias, Node)):
        return None
    return x, weight, bias


def _input_of(node: Node) -> Node | None:
    """The first operand of a call."""
    found = node.args[0] if node.args else node.kwargs.get("input", node.kwargs.get("tensor"))
    return found if isinstance(found, Node) else None


def _activation_of(node: Node) -> Activation | None:
    if node.op not in _CALLS:
        return None
    if node.target is functional.gelu:
        return _GELU.get(str(node.kwargs.get("approximate", "none")))
    return _OTHERS.get(node.target)
