"""What a graph makes of one set of values: in float64, as eager PyTorch computes it, and with noise; whole, or piece by piece.

A piece runs the operations that its outputs need on a part of every value that has the axis (`graph_axes.py`). Before it,
reductions over the axis are made of all pieces, each on what the reductions before it gave. Values are made again for that, so
that no more than a piece of them is in memory.
"""

import math
from collections.abc import Callable, Iterable, Mapping
from typing import Any

import torch

from cudal2_agent.contract.records.module_graph import Graph, GraphNode
from cudal2_agent.contract.records.module_task import Arithmetic
from cudal2_agent.contract.records.named_buffer import BufferElement
from cudal2_agent.sandbox.modules.axis_rules import Axis, combination
from cudal2_agent.sandbox.modules.graph_axes import cut, part_name
from cudal2_agent.sandbox.modules.interpreter import Around, Interpreter
from cudal2_agent.sandbox.modules.library_calls import arithmetic_of
from cudal2_agent.sandbox.modules.noise import Noise, summed
from cudal2_agent.sandbox.modules.operators import operation

SPREAD, REFERENCE, EAGER = -2, -1, 0  # numbers of evaluations; those from 1 have noise
Tensors = Mapping[str, torch.Tensor]
Evaluate = Callable[[int], dict[str, torch.Tensor]]


class Evaluations:
    """Evaluations of graphs on a device. Each number beyond EAGER has noise of its own."""

    def __init__(self, device: torch.device, seed: int, arithmetic: Arithmetic) -> None:
        self._device, self._seed, self._arithmetic = device, seed, arithmetic

    def of(self, graph: Graph, values: Tensors) -> Evaluate:
        """Evaluations of one graph on all of its values."""
        return lambda number: self.run(number, graph, values)

    def run(
        self, number: int, graph: Graph, values: Tensors, terms: Mapping[str, int] | None = None
    ) -> dict[str, torch.Tensor]:
        """Raises: as `Interpreter.run`. `terms`: how many a reduction has, of which only a part is here."""
        if number == REFERENCE:
            return Interpreter(graph, str(self._device), BufferElement.F64).run(values)
        if number == SPREAD:
            return Interpreter(graph, str(self._device)).run(values, around=_spread)
        noise = self.noise(number)
        with arithmetic_of(self._arithmetic):
            return Interpreter(graph, str(self._device)).run(values, around=_partly(noise, terms or {}) if noise else None)

    def noise(self, number: int) -> Noise | None:
        return Noise(self._seed + number, self._device, self._arithmetic) if number > EAGER else None


def _spread(node: GraphNode, function: Callable[..., Any], args: list[Any], kwargs: dict[str, Any]) -> Any:
    """A convolution of which every output of an entry of the batch is NaN where one of its group's inputs is not finite.

    So far cuDNN's algorithms may spread it, which transform tiles, or multiply by zeros outside a window.
    """
    result = function(*args, **kwargs)
    if operation(node) != "convolution":
        return result
    x, groups = args[0], args[8]
    touched = ~x.reshape(x.shape[0], groups, -1).isfinite().all(2)
    channels = touched.repeat_interleave(result.shape[1] // groups, 1)
    return result.masked_fill(channels.reshape(*channels.shape, *[1] * (result.dim() - 2)), math.nan)


def _partly(noise: Noise, terms: Mapping[str, int]) -> Around:
    """The noise, without what the sum of a whole reduction rounds where a node is a part of one."""

    def around(node: GraphNode, function: Callable[..., Any], args: list[Any], kwargs: dict[str, Any]) -> Any:
        if node.name in terms:
            return function(*noise.moved(operation(node), args, terms[node.name]), **kwargs)
        return noise(node, function, args, kwargs)

    return around


class PieceEvaluations:
    """Evaluations of one graph on one set of values, along an axis, `count` indices at a time."""

    def __init__(self, graph: Graph, axis: Axis, count: int, values: Tensors, evaluations: Evaluations) -> None:
        self._graph, self._axis, self._count, self._values, self._all = graph, axis, count, values, evaluations
        self._combined: dict[int, dict[str, torch.Tensor]] = {}

    def pieces(self) -> list[tuple[int, int]]:
        """(first index, indices) of every piece."""
        size = self._axis.size
        return [(start, min(self._count, size - start)) for start in range(0, size, self._count)]

    def apart(self, start: int, count: int) -> Evaluate:
        """Evaluations of a piece: of the outputs that have the axis."""
        outputs = {name: source for name, source in self._graph.outputs.items() if self._axis.place(source)}
        return lambda number: self._piece(number, outputs, start, count, {})

    def whole(self) -> Evaluate:
        """Evaluations of the outputs that are the same in every piece."""
        outputs = {name: source for name, source in self._graph.outputs.items() if not self._axis.place(source)}
        return lambda number: self._piece(number, outputs, 0, min(self._count, self._axis.size), {})

    def eager(self) -> dict[str, torch.Tensor]:
        """Every output of eager PyTorch, put together."""
        found = self.whole()(EAGER)
        for start, count in self.pieces():
            for name, part in self.apart(start, count)(EAGER).items():
                if name.endswith(".of"):  # of a comparison, and no output
                    continue
                place = self._axis.place(self._graph.outputs[name])
                assert place is not None
                if name not in found:
                    shape = [*part.shape]
                    shape[place.dim] = self._axis.size * place.factor
                    found[name] = torch.empty(shape, dtype=part.dtype, device=part.device)
                found[name].narrow(*place.range(start, count)).copy_(part)
        return found

    def _piece(
        self, number: int, outputs: Mapping[str, str], start: int, count: int, terms: Mapping[str, int]
    ) -> dict[str, torch.Tensor]:
        known = self._combined_of(number) if not terms else self._combined[number]
        graph = needed(cut(self._graph, self._axis, start, count), outputs, known)
        read = {name for node in graph.nodes for name in node.inputs()} | set(outputs.values())
        return self._all.run(number, graph, self._part(read, start, count, known), terms)

    def _part(self, names: Iterable[str], start: int, count: int, known: Tensors) -> dict[str, torch.Tensor]:
        """What a piece reads of the values."""
        parts = {part_name(name, place): (name, place) for each in self._axis.narrowed.values() for name, place in each.items()}
        found = {}
        for name in names:
            source, place = parts.get(name, (name, self._axis.place(name)))
            if source in known:
                found[name] = known[source]
            elif source in self._values:
                value = self._values[source]
                found[name] = value if place is None else value.narrow(*place.range(start, count))
        return found

    def _combined_of(self, number: int) -> dict[str, torch.Tensor]:
        """The reductions over the axis. Those of one evaluation are made once."""
        if number not in self._combined:
            found = self._combined[number] = {}
            left = [node for node in self._graph.nodes if node.name in self._axis.combined]
            while left:
                ready = [node for node in left if not self._reads(node, {each.name for each in left if each is not node})]
                found.update(self._combine(number, ready))
                left = [node for node in left if node not in ready]
        return self._combined[number]

    def _reads(self, node: GraphNode, others: set[str]) -> bool:
        """Whether a node depends on one of the others."""
        known = self._axis.combined - others - {node.name}
        return any(each.name in others for each in needed(self._graph, {node.name: node.name}, known).nodes)

    def _combine(self, number: int, nodes: list[GraphNode]) -> dict[str, torch.Tensor]:
        found: dict[str, torch.Tensor] = {}
        terms = {node.name: self._terms(node) for node in nodes}
        outputs = {name: name for name in terms}
        for start, count in self.pieces():
            parts = self._piece(number, outputs, start, count, terms)
            for node in nodes:
                found[node.name] = _joined(combination(node), found.get(node.name), parts[node.name], count / self._axis.size)
        if noise := self._all.noise(number):
            found = {node.name: noise.rounded(operation(node), found[node.name], terms[node.name]) for node in nodes}
        return found

    def _terms(self, node: GraphNode) -> int:
        """How many terms a whole reduction has."""
        shapes = {each.name: each.results[0].shape for each in self._graph.nodes}
        shapes |= {name: tuple(value.shape) for name, value in self._values.items()}
        return summed(node, [torch.empty((), device="meta").expand(shapes[node.inputs()[0]]), *node.args[1:]])


def needed(graph: Graph, outputs: Mapping[str, str], known: Iterable[str] = ()) -> Graph:
    """The operations that some outputs depend on. `known`: values that need no operation."""
    wanted, nodes, have = set(outputs.values()), [], set(known)
    for node in reversed(graph.nodes):
        if node.name in wanted and node.name not in have:
            nodes.append(node)
            wanted.update(node.inputs())
    return graph.model_copy(update={"nodes": tuple(reversed(nodes)), "outputs": dict(outputs)})


def _joined(how: str | None, before: torch.Tensor | None, part: torch.Tensor, share: float) -> torch.Tensor:
    """Two parts of a reduction. `share`: of the terms, that the second one has."""
    part = part * share if how == "mean" else part
    if before is None:
        return part
    match how:
        case "sum" | "mean" | "norm1":
            return before + part
        case "norm2":
            return torch.linalg.vector_norm(torch.stack((before, part)), dim=0)  # hypot hides a NaN beside an infinity
        case "max":
            return torch.maximum(before, part)
        case "min":
            return torch.minimum(before, part)
        case "any":
            return before | part
        case "all":
            return before & part
    return torch.logaddexp(before, part)
