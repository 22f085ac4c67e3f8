"""Leaves out of a graph what no kernel has to do: copies of a value as it is, and operations that nobody reads.

Views state their whole shape; a view of a value in another order of memory is what eager PyTorch copies for.
"""

from collections.abc import Mapping
from typing import Any

from cudal2_agent.contract.records.module_graph import Graph, GraphNode, TensorType

_COPIES = frozenset(f"aten.{name}.default" for name in ("clone", "alias", "detach", "lift_fresh_copy", "_to_copy"))
_OVERWRITE = "aten.copy.default"  # its first argument only has the shape
_SHAPED = frozenset({"aten.view.default", "aten._unsafe_view.default", "aten.reshape.default", "aten.expand.default"})


def simplified(graph: Graph, buffers: Mapping[str, TensorType]) -> Graph:
    """The same values by fewer operations. `buffers`: types of inputs, parameters and states."""
    types = {**buffers, **{node.name: node.results[0] for node in graph.nodes}}
    same: dict[str, str] = {}
    nodes: list[GraphNode] = []
    for each in graph.nodes:
        node = each.model_copy(update={"args": over(each.args, same), "kwargs": over(each.kwargs, same)})
        if (source := _copied(node, types)) is not None:
            same[node.name] = source
        elif node.op in _SHAPED:
            op = node.op if node.op == "aten.expand.default" else "aten.view.default"
            args = (node.args[0], list(node.results[0].shape))
            nodes.append(node.model_copy(update={"op": op, "args": args, "kwargs": {}}))
        else:
            nodes.append(node)
    outputs = {name: same.get(value, value) for name, value in graph.outputs.items()}
    needed, kept = set(outputs.values()), []
    for node in reversed(nodes):
        if node.name in needed:
            kept.append(node)
            needed |= set(node.inputs())
    return Graph(nodes=tuple(reversed(kept)), outputs=outputs)


def _copied(node: GraphNode, types: Mapping[str, TensorType]) -> str | None:
    """The value that a node only copies, or views as it is."""
    if node.op not in _COPIES | _SHAPED | {_OVERWRITE} or not node.args:
        return None
    match node.args[node.op == _OVERWRITE]:
        case {"node": str() as source} if types[source] == node.results[0]:
            return source
    return None


def over(value: Any, names: Mapping[str, str]) -> Any:
    """An argument with other names of values."""
    match value:
        case {"node": str() as name}:
            return {"node": names.get(name, name)}
        case dict():
            return {key: over(each, names) for key, each in value.items()}
        case tuple():
            return tuple(over(each, names) for each in value)
        case list():
            return [over(each, names) for each in value]
    return value
