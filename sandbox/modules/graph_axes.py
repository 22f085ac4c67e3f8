"""Which dimension of a module's values its operations keep apart, so that a graph can be run piece by piece along it.

An axis starts as a dimension of inputs and is followed through the graph. At a value it is a whole dimension, or the outer part
of one into which a view merged others. Where a reduction goes over the axis, the results of pieces are combined (a sum, a mean,
an extremum, a norm); its value is then the same in every piece.
Not covered: an axis inside a merged dimension, and operators without a rule that read the axis; there is no such axis then.
"""

import contextlib
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from cudal2_agent.contract.records.module_graph import Graph, GraphNode, TensorType
from cudal2_agent.contract.records.module_task import ModuleTask
from cudal2_agent.contract.records.named_buffer import Role
from cudal2_agent.sandbox.modules.axis_rules import Axis, AxisPlace, Mixed, follow_node

_LARGE = 1 / 16  # of the largest buffer's elements; dimensions of smaller buffers are no axes worth trying


def axes_of(task: ModuleTask) -> list[Axis]:
    """Axes along which every output lies; where there are none, those whose other outputs are combined."""
    found = list(_axes(task))
    written = [task.graph.outputs[buffer.name] for buffer in task.buffers if buffer.role.written]
    apart = [axis for axis in found if not axis.combined and all(axis.place(name) for name in written)]
    return apart or found


def _axes(task: ModuleTask) -> Iterator[Axis]:
    """Every dimension of the largest buffers, together with that of inputs of the same size there, and alone."""
    read = [buffer for buffer in task.buffers if buffer.role is not Role.OUTPUT and buffer.shape]
    inputs = [buffer for buffer in read if buffer.role is Role.INPUT]
    least = max((buffer.elements for buffer in read), default=0) * _LARGE
    for largest in sorted(read, key=lambda buffer: (buffer.role is not Role.INPUT, -buffer.elements)):
        if largest.elements < least and largest not in inputs[:1]:
            continue
        for dim, size in enumerate(largest.shape):
            alike = [each.name for each in inputs if each.shape[dim : dim + 1] == (size,)]
            together = tuple(dict.fromkeys((largest.name, *alike)))
            for started in dict.fromkeys((together, (largest.name,))) if size > 1 else ():
                with contextlib.suppress(Mixed):
                    yield follow(task, started, dim, size)
                    break


def follow(task: ModuleTask, started: Sequence[str], dim: int, size: int) -> Axis:
    """The axis that is this dimension of these buffers. Raises: Mixed."""
    axis = Axis(size, {name: (AxisPlace(dim),) for name in started})
    shapes: dict[str, tuple[int, ...]] = {buffer.name: buffer.shape for buffer in task.buffers}
    for node in task.graph.nodes:
        if any(any(axis.places.get(name, ())) for name in node.inputs()):
            follow_node(axis, node, shapes)
        shapes[node.name] = node.results[0].shape
    return axis


def cut(graph: Graph, axis: Axis, start: int, count: int) -> Graph:
    """The graph at `count` indices of the axis from `start` on.

    What a node reads a part of has the name of `part_name`; parts of the graph's own values are cut out before it.
    """
    own, nodes, made = {node.name for node in graph.nodes}, list[GraphNode](), set[str]()
    types = {node.name: node.results[0] for node in graph.nodes}
    for node in graph.nodes:
        for name, place in axis.narrowed.get(node.name, {}).items():
            if name in own and (part := part_name(name, place)) not in made:
                made.add(part)
                nodes.append(_slice(name, part, types[name], place.range(start, count)))
        nodes.append(_cut(node, axis, count))
    return graph.model_copy(update={"nodes": tuple(nodes)})


def part_name(name: str, place: AxisPlace) -> str:
    """A part of a value that is the same in every piece."""
    return f"{name}__part{place.dim}_{place.factor}"


def _slice(name: str, part: str, whole: TensorType, taken: tuple[int, int, int]) -> GraphNode:
    dim, first, elements = taken
    shape = (*whole.shape[:dim], elements, *whole.shape[dim + 1 :])
    args = ({"node": name}, dim, first, first + elements)
    return GraphNode(name=part, op="aten.slice.Tensor", args=args, results=(TensorType(shape=shape, element=whole.element),))


def _cut(node: GraphNode, axis: Axis, count: int) -> GraphNode:
    """A node at `count` indices of the axis."""
    places = axis.places.get(node.name)
    if places is None:
        return node
    args: list[Any] = list(node.args)
    if node.name in axis.sizes:
        position, place, factor = axis.sizes[node.name]
        value = count * factor
        args[position] = value if place is None else [*args[position][:place], value, *args[position][place + 1 :]]
    names = {name: part_name(name, place) for name, place in axis.narrowed.get(node.name, {}).items()}
    kwargs = {key: _renamed(value, names) for key, value in node.kwargs.items()}
    results = tuple(_at(result, place, count) for result, place in zip(node.results, places, strict=True))
    return node.model_copy(update={"args": tuple(_renamed(args, names)), "kwargs": kwargs, "results": results})


def _at(whole: TensorType, place: AxisPlace | None, count: int) -> TensorType:
    if place is None:
        return whole
    shape = (*whole.shape[: place.dim], count * place.factor, *whole.shape[place.dim + 1 :])
    return whole.model_copy(update={"shape": shape})


def _renamed(value: Any, names: Mapping[str, str]) -> Any:
    match value:
        case {"node": str() as name}:
            return {"node": names.get(name, name)}
        case list() | tuple():
            return [_renamed(each, names) for each in value]
    return value
