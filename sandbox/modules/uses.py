"""What a graph uses its parameters and its whole-number inputs for."""

from collections.abc import Mapping
from typing import Any

from cudal2_agent.contract.records.module_graph import Graph
from cudal2_agent.sandbox.modules.operators import operation

_MATRIX = {
    "mm": (0, 1),
    "bmm": (0, 1),
    "addmm": (1, 2),
    "linear": (1,),
    "convolution": (1,),
    "embedding": (0,),
    "baddbmm": (1, 2),
}
_FACTOR = {
    "native_batch_norm": 1,
    "_native_batch_norm_legit_no_training": 1,
    "_native_batch_norm_legit": 1,
    "native_layer_norm": 2,
    "native_group_norm": 1,
}
_VARIANCE = {"native_batch_norm": 4, "_native_batch_norm_legit_no_training": 4, "_native_batch_norm_legit": 4}
_SAME = frozenset(
    (
        *("view", "reshape", "permute", "transpose", "t", "unsqueeze", "squeeze", "expand", "_to_copy", "clone", "alias"),
        *("_unsafe_view", "contiguous"),
    )
)


def parameter_uses(graph: Graph) -> dict[str, str]:
    """By buffer what the graph uses it for: `matrix`, `factor` of a norm, `variance`; others are added or multiplied."""
    uses, stands_for = dict[str, str](), dict[str, str]()
    for node in graph.nodes:
        name, reads = operation(node), [_node(arg) for arg in node.args]
        names = [stands_for.get(each, each) for each in reads]
        for position, each in enumerate(names):
            if not each:
                continue
            if position in _MATRIX.get(name, ()):
                uses.setdefault(each, "matrix")
            elif _FACTOR.get(name) == position:
                uses[each] = "factor"
            elif position == 3 and name in _VARIANCE:
                uses[each] = "mean"
            elif _VARIANCE.get(name) == position or name in ("rsqrt", "sqrt", "log"):
                uses[each] = "variance"
        if names and names[0] and name in _SAME:
            stands_for[node.name] = names[0]
    return uses


def _node(arg: Any) -> str:
    return arg["node"] if isinstance(arg, Mapping) and isinstance(arg.get("node"), str) else ""


def index_limits(graph: Graph, shapes: Mapping[str, tuple[int, ...]]) -> dict[str, int]:
    """By buffer of indices, the size of the dimension that it indexes."""
    known = dict(shapes) | {node.name: node.results[0].shape for node in graph.nodes}
    limits, stands_for = dict[str, int](), dict[str, str]()
    for node in graph.nodes:
        name, reads = operation(node), [_node(arg) for arg in node.args]
        moved = reads[1] if name == "where" and len(reads) > 1 else reads[0] if name in _SAME and reads else ""
        if moved:
            stands_for[node.name] = stands_for.get(moved, moved)
        found: dict[str, int] = {}
        if name == "embedding":
            found[reads[1]] = known[reads[0]][0]
        elif name in ("gather", "index_select", "scatter", "scatter_add") and len(known[reads[0]]):
            found[reads[2]] = known[reads[0]][node.args[1]]
        elif name.startswith(("nll_loss", "cross_entropy")):
            found[reads[1]] = known[reads[0]][-1 if len(known[reads[0]]) == 1 else 1]
        elif name == "index":
            found = {_node(each): known[reads[0]][place] for place, each in enumerate(node.args[1]) if _node(each)}
        for each, limit in found.items():
            each = stands_for.get(each, each)
            limits[each] = min(limits.get(each, limit), limit)
    return limits
