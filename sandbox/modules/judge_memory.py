"""How much memory a judge of a graph takes while it is made: the largest of all its operations, counted before any runs.

Counted: the values that are alive beside each operation, in float64 or with the copies that noise makes of its operands and its
result; what a convolution in float64 makes besides; what is kept of every output.
Not counted: what other operations allocate inside, and the comparison's temporaries, which are those of a block.
"""

import math
from collections.abc import Mapping

from cudal2_agent.contract.records.module_graph import Graph, GraphNode
from cudal2_agent.contract.records.module_task import ModuleTask
from cudal2_agent.contract.records.named_buffer import Role
from cudal2_agent.sandbox.modules.axis_rules import Axis
from cudal2_agent.sandbox.modules.evaluations import needed
from cudal2_agent.sandbox.modules.graph_axes import cut, part_name
from cudal2_agent.sandbox.modules.noise import is_exact, is_moved
from cudal2_agent.sandbox.modules.operators import operation

WIDE, NARROW = 8, 4  # bytes of an element in the reference, and of one in eager's type, at most
# Of an output: the reference, its spread, what is free, eager's result, a noisy one, and the spread of a second look.
KEPT = 8 + 4 + 1 + 4 + 4 + 4
TEMPORARIES = 4  # of an operation's result, or of an operand, that noise makes at once
# Their results are other looks at their operands' memory.
_LOOKS = frozenset(
    ("view", "permute", "transpose", "t", "unsqueeze", "squeeze", "expand", "select", "slice", "split_with_sizes", "unfold")
)


def judge_bytes(task: ModuleTask, graph: Graph, axis: Axis | None = None, count: int = 0) -> int:
    """Bytes beside the values themselves. With an axis: of its largest piece of `count` indices."""
    if axis is None:
        return _peak(graph, _elements(task, None, 0))
    parts = cut(graph, axis, 0, count)
    sizes = _elements(task, axis, count)
    known = axis.combined
    stages = [{name: name} for name in known] + [graph.outputs]
    return max(_peak(needed(parts, stage, known - set(stage)), sizes) for stage in stages)


def _elements(task: ModuleTask, axis: Axis | None, count: int) -> dict[str, int]:
    """Of every buffer, or of the part that a piece reads."""
    shapes = {buffer.name: buffer.shape for buffer in task.buffers if buffer.role is not Role.OUTPUT}
    sizes = {name: math.prod(shape) for name, shape in shapes.items()}
    if axis is None:
        return sizes
    parts = {name: size // axis.size * count for name, size in sizes.items()}
    narrowed = [pair for each in axis.narrowed.values() for pair in each.items()]
    found = {name: parts[name] if axis.place(name) else size for name, size in sizes.items()}
    return found | {part_name(name, place): parts[name] for name, place in narrowed if name in parts}


def _peak(graph: Graph, buffers: dict[str, int]) -> int:
    """Of the reference's run, of a noisy one, and of the comparison, the largest."""
    roots, sizes = {name: name for name in buffers}, dict(buffers)
    last, kept = dict[str, int](), 0
    for index, node in enumerate(graph.nodes):
        looks = (operation(node) in _LOOKS or node.op == "getitem") and bool(node.inputs())
        roots[node.name] = roots.get(node.inputs()[0], "") if looks else node.name
        sizes[node.name] = sum(math.prod(result.shape) for result in node.results)
        last.update({roots.get(name, ""): index for name in (*node.inputs(), node.name)})
    for source in graph.outputs.values():
        last[roots.get(source, "")] = len(graph.nodes)
        kept += sizes.get(source, 0)
    read = {name for node in graph.nodes for name in node.inputs()} & set(buffers)
    wide = sum(sizes[name] for name in read)  # of floating values: converted before the first operation
    alive, most_wide, most_narrow = {name: sizes[name] for name in read}, wide * WIDE, 0
    for index, node in enumerate(graph.nodes):
        if roots[node.name] == node.name:
            alive[node.name] = sizes[node.name]
        held = sum(alive.values())
        made = sum(size for name, size in alive.items() if name not in buffers)
        most_wide = max(most_wide, (held + _of_taps(node, sizes) + 3 * _of_scores(node, sizes)) * WIDE)
        most_narrow = max(most_narrow, made * NARROW + _of_noise(node, sizes))
        for name in [name for name in alive if last.get(name, -1) <= index]:
            del alive[name]
    return max(most_wide, most_narrow + KEPT * kept, (WIDE + KEPT) * kept)


def _of_taps(node: GraphNode, sizes: Mapping[str, int]) -> int:
    """Elements that a convolution in float64 makes besides its result (`wide_convolution.py`)."""
    return 2 * sizes[node.inputs()[0]] + sizes[node.name] if operation(node) == "convolution" else 0


def _of_noise(node: GraphNode, sizes: dict[str, int]) -> int:
    operands = sum(sizes.get(name, 0) for name in node.inputs()) if is_moved(node) else 0
    scores = _of_scores(node, sizes)
    largest = max((sizes.get(name, 0) for name in node.inputs()), default=0) if is_moved(node) else 0
    result = 0 if is_exact(node) else TEMPORARIES * sizes[node.name]
    return NARROW * (max(operands + TEMPORARIES * max(largest, scores), operands + result) + scores)


def _of_scores(node: GraphNode, sizes: Mapping[str, int]) -> int:
    """Elements of an attention's scores, which the reference and noise hold. The values have as many rows as there are scores
    in each row.
    """
    if operation(node) != "scaled_dot_product_attention":
        return 0
    *_, rows, width = node.results[0].shape
    return rows * sizes[node.inputs()[2]] // max(width, 1)
