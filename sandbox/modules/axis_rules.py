"""What each operator does to an axis of its operands: where its results have it, or that indices of the axis meet.

Operators without a rule are those that KernelBench's problems do not need; they raise `Mixed`, as all do where indices meet.
"""

import math
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, replace
from typing import Any

from cudal2_agent.contract.records.module_graph import GraphNode
from cudal2_agent.sandbox.modules.operators import POINTWISE, operation

Shape = tuple[int, ...]


@dataclass(frozen=True)
class AxisPlace:
    """Where a value has the axis: in dimension `dim`, of `factor` elements for each index."""

    dim: int
    factor: int = 1

    def range(self, start: int, count: int) -> tuple[int, int, int]:
        """(dimension, first element, elements) of a piece, as `torch.narrow` takes them."""
        return self.dim, start * self.factor, count * self.factor


@dataclass
class Axis:
    """An axis of `size` indices. `places`: of buffers and nodes that have it; a node of several results has one for each.

    `narrowed`: by node, what it reads of values that are the same in every piece: which part of them. `sizes`: by node, the
    arguments that are the axis' size: (argument, place in its list or None, elements for each index).
    `combined`: reductions over the axis.
    """

    size: int
    places: dict[str, tuple[AxisPlace | None, ...]] = field(default_factory=dict)
    narrowed: dict[str, dict[str, AxisPlace]] = field(default_factory=dict)
    sizes: dict[str, tuple[int, int | None, int]] = field(default_factory=dict)
    combined: set[str] = field(default_factory=set)

    def place(self, name: str) -> AxisPlace | None:
        """Of a value with one result."""
        return self.places.get(name, (None,))[0]


class Mixed(Exception):
    """The indices of the axis meet."""


def follow_node(axis: Axis, node: GraphNode, shapes: Mapping[str, Shape]) -> None:
    """Note where a node that reads the axis has it. Raises: Mixed."""
    AxisStep(axis, node, shapes).follow()


class AxisStep:
    """One node that reads the axis."""

    def __init__(self, axis: Axis, node: GraphNode, shapes: Mapping[str, Shape]) -> None:
        self.axis, self.node, self.shapes = axis, node, shapes
        self.out = node.results[0].shape

    def follow(self) -> None:
        """Note where the node's results have the axis. Raises: Mixed."""
        node, name = self.node, operation(self.node)
        if node.op == "getitem":
            places = self.axis.places[node.inputs()[0]]
            if (chosen := places[node.args[1]]) is None:
                raise Mixed
            self.axis.places[node.name] = (chosen,)
            return
        found = rule_of(name)(self)
        places = found if isinstance(found, tuple) else (found,) * len(node.results)
        for place, result in zip(places, node.results, strict=True):
            if place is not None and result.shape[place.dim] != self.axis.size * place.factor:
                raise Mixed
        self.axis.places[node.name] = places

    def place(self, position: int) -> AxisPlace | None:
        """Where an argument that is one value has the axis."""
        return self.axis.place(self.name(position))

    def name(self, position: int) -> str:
        value = self.node.args[position] if position < len(self.node.args) else None
        return str(value["node"]) if isinstance(value, Mapping) and "node" in value else ""

    def shape(self, position: int) -> Shape:
        return self.shapes[self.name(position)]

    def number(self, position: int, default: Any = None) -> Any:
        return self.node.args[position] if position < len(self.node.args) else default

    def narrow(self, position: int, place: AxisPlace) -> None:
        """Read a part of an argument that has not got the axis; one that has must have it there. Raises: Mixed."""
        self.narrow_value(self.name(position), place)

    def narrow_value(self, name: str, place: AxisPlace) -> None:
        if not name:
            return
        if (found := self.axis.place(name)) is not None:
            if found != place:
                raise Mixed
        elif name in self.axis.places or self.shapes[name][place.dim] != self.axis.size * place.factor:
            raise Mixed
        else:
            self.axis.narrowed.setdefault(self.node.name, {})[name] = place

    def whole(self, *positions: int) -> None:
        """These arguments must not have the axis. Raises: Mixed."""
        if any(self.place(position) for position in positions):
            raise Mixed

    def only(self, position: int = 0) -> AxisPlace:
        """The axis of this argument; no other one has it. Raises: Mixed."""
        place = self.place(position)
        if place is None or any(self.axis.place(each) for each in self.node.inputs() if each != self.name(position)):
            raise Mixed
        return place


Found = AxisPlace | None | tuple[AxisPlace | None, ...]


def _pointwise(step: AxisStep) -> Found:
    """Aligned at the last dimension; an operand that is broadcast along the axis has one element there."""
    rank, places = len(step.out), set()
    for name in step.node.inputs():
        if (place := step.axis.place(name)) is not None:
            places.add(AxisPlace(place.dim + rank - len(step.shapes[name]), place.factor))
    if len(places) != 1:
        raise Mixed
    place = places.pop()
    for name in step.node.inputs():
        dim = place.dim - rank + len(step.shapes[name])
        if dim >= 0 and step.shapes[name][dim] > 1:
            step.narrow_value(name, AxisPlace(dim, place.factor))
    return place


def _same(step: AxisStep) -> Found:
    return step.only()


def _permuted(step: AxisStep) -> Found:
    place, rank = step.only(), len(step.out)
    match operation(step.node):
        case "permute":
            order = [dim % rank for dim in step.number(1)]
        case "transpose":
            order, (one, other) = list(range(rank)), (step.number(1) % rank, step.number(2) % rank)
            order[one], order[other] = other, one
        case _:
            order = list(range(rank))[::-1]
    return replace(place, dim=order.index(place.dim))


def _unsqueezed(step: AxisStep) -> Found:
    place = step.only()
    return replace(place, dim=place.dim + (step.number(1) % len(step.out) <= place.dim))


def _squeezed(step: AxisStep) -> Found:
    place, shape = step.only(), step.shape(0)
    given = step.number(1, range(len(shape)))
    dims = {dim % len(shape) for dim in ([given] if isinstance(given, int) else given)}
    if place.dim in dims:  # a piece may have one index
        raise Mixed
    gone = {dim for dim in dims if shape[dim] == 1}
    return replace(place, dim=place.dim - sum(dim < place.dim for dim in gone))


def _expanded(step: AxisStep) -> Found:
    place = step.only()
    found = replace(place, dim=place.dim + len(step.out) - len(step.shape(0)))
    step.axis.sizes[step.node.name] = (1, found.dim, found.factor)
    return found


def _viewed(step: AxisStep) -> Found:
    """The axis stays if as many elements lie before it, and it is the outer part of a dimension."""
    place, shape = step.only(), step.shape(0)
    before = math.prod(shape[: place.dim])
    for dim, size in enumerate(step.out):
        if math.prod(step.out[:dim]) == before and size >= step.axis.size and size % step.axis.size == 0:
            found = AxisPlace(dim, size // step.axis.size)
            step.axis.sizes[step.node.name] = (1, dim, found.factor)
            return found
    raise Mixed


def _selected(step: AxisStep) -> Found:
    place, dim = step.only(), step.number(1, 0) % len(step.shape(0))
    if dim == place.dim:
        raise Mixed
    return replace(place, dim=place.dim - (dim < place.dim)) if operation(step.node).startswith("select") else place


def _along_others(step: AxisStep) -> Found:
    """Scans, parts and softmax along a dimension, or some, that is not the axis."""
    place, rank = step.only(), len(step.shape(0))
    name = operation(step.node)
    position = 2 if name in ("split_with_sizes", "split_with_sizes_copy", "split", "roll") else 1
    given = step.number(position, [] if name == "roll" else 0)  # without dimensions all elements are rolled in one row
    dims = [given] if isinstance(given, int) else given
    if not dims or place.dim in [dim % rank for dim in dims]:
        raise Mixed
    return place


def _padded(step: AxisStep) -> Found:
    place, rank, pads = step.only(), len(step.out), step.number(1)
    last = rank - 1 - place.dim
    if any(pads[2 * last : 2 * last + 2]):
        raise Mixed
    return place


def _joined(step: AxisStep) -> Found:
    stacked, rank = operation(step.node) == "stack", len(step.out)
    dim = step.number(1, 0) % rank
    names = [each["node"] for each in step.node.args[0]]
    places = {place for name in names if (place := step.axis.place(name)) is not None}
    if len(places) != 1 or (dim == next(iter(places)).dim and not stacked):
        raise Mixed
    place = places.pop()
    for name in names:
        step.narrow_value(name, place)
    return replace(place, dim=place.dim + (stacked and dim <= place.dim))


def _gathered(step: AxisStep) -> Found:
    place, dim = step.place(0), step.number(1)
    if place is None or dim % len(step.out) == place.dim:
        raise Mixed
    step.narrow(2, place)
    return place


def _embedded(step: AxisStep) -> Found:
    step.whole(0)
    return step.place(1)


def _product(step: AxisStep) -> Found:
    """Rows of the first factor, columns of the second, or the batch of both. A bias goes with columns, or with rows."""
    name = operation(step.node)
    first = 1 if name in ("addmm", "baddbmm") else 0
    left, right, rank = step.place(first), step.place(first + 1), len(step.out)
    if rank == 3 and any(place is not None and place.dim == 0 for place in (left, right)):
        place = left or right
        assert place is not None
        step.narrow(first, place)
        step.narrow(first + 1, place)
    elif left is not None and right is None and left.dim == rank - 2:
        place = left
    elif right is not None and left is None and right.dim == rank - 1:
        place = right
    else:
        raise Mixed
    if first:
        step.whole(0)
        dim = place.dim - rank + len(step.shape(0))
        if dim >= 0 and step.shape(0)[dim] > 1:
            step.narrow(0, AxisPlace(dim, place.factor))
    return place


def _batch_only(step: AxisStep) -> AxisPlace:
    place = step.only()
    if place.dim:
        raise Mixed
    return place


def _window(step: AxisStep) -> Found:
    """Pools go over the last dimensions, as many as their sizes."""
    place, sizes = step.only(), step.number(1)
    if place.dim >= len(step.out) - (len(sizes) if isinstance(sizes, list | tuple) else 1):
        raise Mixed
    return place


def _batch_norm(step: AxisStep) -> Found:
    """Of a channel; of any dimension where the statistics are given."""
    place = step.place(0)
    given = operation(step.node).endswith("no_training")
    if place is None or (place.dim != 1 and not given):
        raise Mixed
    channel = AxisPlace(0, place.factor)
    for position in range(1, len(step.node.args)):
        if step.name(position):
            if place.dim == 1:
                step.narrow(position, channel)
            else:
                step.whole(position)
    kept = [channel if place.dim == 1 and result.shape != (0,) else None for result in step.node.results[1:]]
    return (place, *kept)


def _layer_norm(step: AxisStep) -> Found:
    place = step.only()
    if place.dim >= len(step.out) - len(step.number(1)):
        raise Mixed
    return place


def _group_norm(step: AxisStep) -> Found:
    place = _batch_only(step)
    step.axis.sizes[step.node.name] = (3, None, place.factor)
    return place


def _attention(step: AxisStep) -> Found:
    places = {place for position in range(3) if (place := step.place(position)) is not None}
    if len(places) != 1 or next(iter(places)).dim >= len(step.out) - 2:
        raise Mixed
    place = places.pop()
    for position in range(3):
        step.narrow(position, place)
    if step.name(3):
        dim = place.dim - len(step.out) + len(step.shape(3))
        if dim >= 0 and step.shape(3)[dim] > 1:
            step.narrow(3, AxisPlace(dim, place.factor))
    return place


def _reduced(step: AxisStep) -> Found:
    """Over other dimensions, or over the axis where the results of pieces can be combined."""
    place, shape, name = step.only(), step.shape(0), operation(step.node)
    given = step.number(2 if name in ("linalg_vector_norm", "norm") else 1)
    dims = [given] if isinstance(given, int) else list(given or range(len(shape)))
    gone = {dim % len(shape) for dim in dims}
    if place.dim in gone:
        if combination(step.node) is None:
            raise Mixed
        step.axis.combined.add(step.node.name)
        return None
    keep = len(step.out) == len(shape)
    return replace(place, dim=place.dim - (0 if keep else sum(dim < place.dim for dim in gone)))


def _extreme(step: AxisStep) -> Found:
    return _pointwise(step) if step.node.op.endswith(".other") else _reduced(step)


_RULES: dict[str, Callable[[AxisStep], Found]] = {
    **dict.fromkeys(("permute", "permute_copy", "transpose", "t"), _permuted),
    **dict.fromkeys(("unsqueeze", "unsqueeze_copy"), _unsqueezed),
    **dict.fromkeys(("squeeze", "squeeze_copy"), _squeezed),
    **dict.fromkeys(("expand", "expand_copy"), _expanded),
    **dict.fromkeys(("view", "view_copy", "reshape", "reshape_copy", "_unsafe_view"), _viewed),
    **dict.fromkeys(("select", "select_copy", "slice", "slice_copy", "unfold", "unfold_copy", "narrow"), _selected),
    **dict.fromkeys(("cumsum", "cumprod", "logcumsumexp", "_softmax", "_log_softmax", "softmax", "log_softmax"), _along_others),
    **dict.fromkeys(("flip", "roll", "split_with_sizes", "split", "split_with_sizes_copy"), _along_others),
    **dict.fromkeys(("cat", "stack"), _joined),
    **dict.fromkeys(("mm", "addmm", "bmm", "baddbmm"), _product),
    **dict.fromkeys(("_native_batch_norm_legit_no_training", "_native_batch_norm_legit"), _batch_norm),
    **dict.fromkeys(("sum", "mean", "amax", "amin", "prod", "logsumexp", "linalg_vector_norm", "norm", "any", "all"), _reduced),
    **dict.fromkeys(("argmax", "argmin", "var", "std"), _reduced),
    **dict.fromkeys(("max", "min"), _extreme),
    **dict.fromkeys(("max_pool2d_with_indices", "max_pool3d_with_indices", "avg_pool1d", "avg_pool2d", "avg_pool3d"), _window),
    **dict.fromkeys(("adaptive_avg_pool1d", "_adaptive_avg_pool2d", "_adaptive_avg_pool3d"), _window),
    **dict.fromkeys(("full_like", "zeros_like", "ones_like", "empty_like", "clone", "_to_copy", "alias", "detach"), _same),
    "constant_pad_nd": _padded,
    "convolution": _batch_only,
    "gather": _gathered,
    "embedding": _embedded,
    "native_layer_norm": _layer_norm,
    "native_group_norm": _group_norm,
    "scaled_dot_product_attention": _attention,
}


def rule_of(name: str) -> Callable[[AxisStep], Found]:
    """Raises: Mixed for an operator without one."""
    rule = _RULES.get(name, _pointwise if name in POINTWISE else None)
    if rule is None:
        raise Mixed
    return rule


def combination(node: GraphNode) -> str | None:
    """How the results of a reduction's pieces are combined: `sum`, `mean`, `max`, `min`, `any`, `all`, `norm1`, `norm2`,
    `logsumexp`; None where they cannot be.
    """
    name = operation(node)
    match name:
        case "sum" | "mean" | "any" | "all" | "logsumexp":
            return name
        case "amax" | "amin" | "max" | "min":
            return name.removeprefix("a") if len(node.results) == 1 else None
        case "linalg_vector_norm" | "norm":
            order = node.args[1] if len(node.args) > 1 else 2
            return {1.0: "norm1", 2.0: "norm2"}.get(float(order)) if isinstance(order, int | float) else None
    return None
