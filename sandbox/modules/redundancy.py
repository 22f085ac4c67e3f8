"""Operations that change nothing for any input, because of what precedes or follows them: a ReLU behind a ReLU, x / 1, a mean
of one element.

A program that leaves one out is right, and is no fault of a task. What is redundant is decided by the range of the values that
an operation can get, and by what it and the pointwise operations behind it do to a dense set of numbers of that range.

Not covered: ranges that depend on parameters; operations that only a chain with several tensors makes redundant.
"""

import math
from collections.abc import Mapping
from typing import Any

import torch

from cudal2_agent.contract.records.module_graph import Graph, GraphNode
from cudal2_agent.contract.records.module_task import ModuleTask
from cudal2_agent.contract.records.named_buffer import BufferElement, Role
from cudal2_agent.sandbox.modules.interpreter import Interpreter, without
from cudal2_agent.sandbox.modules.operators import operation
from cudal2_agent.sandbox.modules.uses import index_limits

Range = tuple[float, float]
ALL: Range = (-math.inf, math.inf)
_CLOSE = 2.0**-22  # two roundings of f32, relative
_MOST = 2.0**100  # of the numbers that are tried
_POINTWISE = frozenset(
    (
        *("relu", "relu6", "leaky_relu", "hardtanh", "clamp", "clamp_min", "clamp_max", "abs", "neg", "sigmoid", "tanh", "exp"),
        *("gelu", "silu", "mish", "softplus", "elu", "selu", "celu", "hardsigmoid", "hardswish", "log", "sqrt", "rsqrt", "pow"),
        *("add", "sub", "mul", "div", "square", "sign", "log1p", "expm1", "erf", "softshrink", "threshold", "reciprocal"),
    )
)
# Of values that are moved, chosen or averaged, the range is that of what they were.
_SAME_RANGE = frozenset(
    (
        *("view", "reshape", "permute", "transpose", "expand", "squeeze", "unsqueeze", "clone", "alias", "slice", "select"),
        *(
            "mean",
            "amax",
            "amin",
            "getitem",
            "max",
            "min",
            "max_pool2d_with_indices",
            "max_pool3d_with_indices",
            "_unsafe_view",
        ),
        *("_adaptive_avg_pool2d", "_adaptive_avg_pool3d", "adaptive_avg_pool1d", "logsumexp", "t", "flip", "cat"),
    )
)
_KNOWN: dict[str, Range] = {"sigmoid": (0, 1), "hardsigmoid": (0, 1), "_softmax": (0, 1), "tanh": (-1, 1), "abs": (0, math.inf)}
_SHIFTED = frozenset({"native_layer_norm", "native_group_norm", "_softmax", "_log_softmax"})
_OVER_ONE = frozenset({"sum", "mean", "logsumexp", "amax", "amin", "cumsum", "prod", "avg_pool2d", "avg_pool3d", "avg_pool1d"})


def is_redundant(task: ModuleTask, name: str) -> bool:
    """Whether the module without this operation computes the same for every input."""
    node = next(node for node in task.graph.nodes if node.name == name)
    sizes = {buffer.name: buffer.shape for buffer in task.buffers} | {n.name: n.results[0].shape for n in task.graph.nodes}
    reads = node.inputs()
    if not reads:
        return False
    if operation(node) in _OVER_ONE and math.prod(sizes[reads[0]]) == math.prod(node.results[0].shape):
        return True
    if _is_shift_of_norms(task, node, sizes):
        return True
    if operation(node) == "where":
        return _is_decided(task, node)
    return _is_pointwise(node) and _same_on_a_range(task, node, _range_of(reads[0], _nodes(task.graph)))


def _is_shift_of_norms(task: ModuleTask, node: GraphNode, sizes: Mapping[str, tuple[int, ...]]) -> bool:
    """One number added to all values that only norms or a softmax read."""
    added = [name for name in node.inputs()[1:] if math.prod(sizes[name]) > 1]
    readers = [each for each in task.graph.nodes if node.name in each.inputs()]
    whole = operation(node) in ("add", "sub") and not added and node.name not in task.graph.outputs.values()
    return whole and bool(readers) and all(operation(r) in _SHIFTED and r.inputs()[0] == node.name for r in readers)


def _nodes(graph: Graph) -> dict[str, GraphNode]:
    return {node.name: node for node in graph.nodes}


def _is_pointwise(node: GraphNode) -> bool:
    return operation(node) in _POINTWISE and len(node.inputs()) == 1 and node.results[0].element is BufferElement.F32


def _same_on_a_range(task: ModuleTask, node: GraphNode, span: Range) -> bool:
    """The operation and the pointwise ones behind it, with it and without it, on numbers of a range."""
    source, chain = node.inputs()[0], [node]
    readers = {name: [each for each in task.graph.nodes if name in each.inputs()] for name in _nodes(task.graph)}
    results = set(task.graph.outputs.values())
    while chain[-1].name not in results and len(readers[chain[-1].name]) == 1 and _is_pointwise(readers[chain[-1].name][0]):
        chain.append(readers[chain[-1].name][0])
    points = _points(span)
    values = {source: points}
    dropped = without(task, node.name)
    if dropped is None:
        return False
    stand_in = node.model_copy(update={"op": "aten.clone.default", "args": ({"node": source},), "kwargs": {}})
    outputs = {"end": chain[-1].name}
    found = [
        Interpreter(Graph(nodes=tuple(nodes), outputs=outputs)).run(values)["end"] for nodes in (chain, [stand_in, *chain[1:]])
    ]
    return bool(torch.allclose(*found, rtol=_CLOSE, atol=0, equal_nan=True))


def _points(span: Range) -> torch.Tensor:
    """Every f32 number of a range whose lower 16 bits are zero, below 2^100, and its ends."""
    every = torch.arange(2**16, dtype=torch.int32).bitwise_left_shift(16).view(torch.float32)
    low, high = max(span[0], -_MOST), min(span[1], _MOST)
    inside = every[every.isfinite() & (every >= low) & (every <= high)]
    return torch.cat([inside, torch.linspace(max(low, -8), min(high, 8), 4001).clamp(low, high), torch.tensor([low, high])])


def _range_of(name: str, nodes: Mapping[str, GraphNode]) -> Range:
    """The range of a value, as far as it does not depend on inputs and parameters."""
    node = nodes.get(name)
    if node is None or not node.inputs():
        return ALL
    kind = operation(node)
    if kind in _KNOWN:
        return _KNOWN[kind]
    if kind in _SAME_RANGE:
        spans = [_range_of(each, nodes) for each in node.inputs()]
        low, high = min(low for low, _ in spans), max(high for _, high in spans)
        return (low, math.inf) if kind == "logsumexp" else (low, high)
    if not _is_pointwise(node):
        return ALL
    low, high = _range_of(node.inputs()[0], nodes)
    graph = Graph(nodes=(node,), outputs={"end": node.name})
    ends = Interpreter(graph).run({node.inputs()[0]: _points((low, high))})["end"]
    if not bool(ends.isfinite().all()) or float(ends.abs().max()) >= _MOST:
        ends = ends[ends.isfinite()]
        low, high = (float(ends.min()), float(ends.max())) if len(ends) else ALL
        return (low if low > -(2.0**60) else -math.inf, high if high < 2.0**60 else math.inf)
    return float(ends.min()), float(ends.max())


def _is_decided(task: ModuleTask, node: GraphNode) -> bool:
    """A choice by a comparison of indices with a number that is outside of their range; or by NaN, which the proof tries."""
    nodes, first = _nodes(task.graph), node.inputs()[0]
    test = nodes.get(first)
    if test is not None and operation(test) == "isnan":
        return True
    if test is None or operation(test) not in ("ne", "eq") or len(test.inputs()) != 1:
        return False
    limits = index_limits(task.graph, {buffer.name: buffer.shape for buffer in task.buffers})
    name = _moved_from(test.inputs()[0], nodes)
    read = next((buffer for buffer in task.buffers if buffer.name == name and buffer.role is Role.INPUT), None)
    number: Any = test.args[1] if len(test.args) > 1 else None
    if read is None or read.element.floating or not isinstance(number, int):
        return False
    low = 0 if read.low is None else read.low
    return not low <= number <= (limits.get(name, math.inf) - 1 if read.high is None else read.high)


def _moved_from(name: str, nodes: Mapping[str, GraphNode]) -> str:
    while name in nodes and operation(nodes[name]) in _SAME_RANGE and len(nodes[name].inputs()) == 1:
        name = nodes[name].inputs()[0]
    return name
