"""Records how a problem makes its inputs and parameters: the operators that its constructor and get_inputs run. In the jail."""

from collections.abc import Iterable, Mapping
from typing import Any

import torch
from torch.utils import _pytree as pytree
from torch.utils._python_dispatch import TorchDispatchMode

from cudal2_agent.contract.errors import UsageError
from cudal2_agent.contract.records.module_graph import MAX_NODES, Graph, GraphNode
from cudal2_agent.contract.records.named_buffer import Buffer, BufferElement, Role
from cudal2_agent.sandbox.modules.interpreter import drawn
from cudal2_agent.sandbox.modules.operators import operator, packet_of
from cudal2_agent.sandbox.modules.tracing.graph_export import literal, recorded, type_of
from cudal2_agent.sandbox.modules.tracing.trace_messages import TracedModule

_MOST_RUN_BYTES = 256 << 20  # of what is computed to learn the range of a buffer
_MOST_LITERAL = 1 << 16  # elements of all constants together
_DRAWN = ("rand", "uniform", "normal", "bernoulli", "multinomial", "exponential", "random_", "poisson", "cauchy", "geometric")
_ALIASES = ("aten.detach.default", "aten.alias.default", "aten.lift_fresh.default")
_SAME_VALUES = (
    "_to_copy",
    "view",
    "alias",
    "detach",
    "clone",
    "unsqueeze",
    "squeeze",
    "expand",
    "permute",
    "reshape",
    "contiguous",
)


class Tape(TorchDispatchMode):  # type: ignore[misc]
    """Its nodes change their tensors in place where the problem did. `failed`: why it could not record; empty if it could."""

    def __init__(self) -> None:
        super().__init__()
        self._nodes: list[GraphNode] = []
        self._names: dict[int, str] = {}
        self._storages: dict[Any, str] = {}
        self._kept: list[torch.Tensor] = []  # so that no id is used again
        self._literals = 0
        self.failed = ""

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        result = func(*args, **(kwargs or {}))
        if not self.failed:
            try:
                self._record(func, args, kwargs or {}, result)
            except (UsageError, ValueError, AttributeError, RuntimeError) as exc:
                self.failed = " ".join(str(exc).split())
        return result

    def graph_of(self, tensors: Mapping[str, torch.Tensor]) -> Graph:
        """What makes these tensors. Raises: UsageError where a tensor was not seen."""
        outputs = {name: self._name(value) for name, value in tensors.items()}
        return Making(Graph(nodes=tuple(self._nodes), outputs=outputs)).of(outputs)

    def _record(self, func: Any, args: Any, kwargs: Any, result: Any) -> None:
        tensors = [each for each in pytree.tree_leaves(result) if isinstance(each, torch.Tensor)]
        if not tensors:
            return  # a look at a value, or a check
        operator(str(func), drawing=True)
        if str(func) in _ALIASES and _place(result) == _place(args[0]):
            self._remember(result, self._name(args[0]))
            return
        if len(self._nodes) >= MAX_NODES:
            raise UsageError(f"more than {MAX_NODES:,} operations")
        args, kwargs = pytree.tree_map_only(torch.Tensor, self._reference, (args, kwargs))
        name = f"v{len(self._nodes)}"
        options = {
            key: _as_json(value) for key, value in kwargs.items() if key not in ("device", "pin_memory", "layout", "generator")
        }
        options = {key: value for key, value in options.items() if value is not None}
        types = tuple(type_of(each) for each in tensors)
        node = GraphNode(name=name, op=str(func), args=tuple(map(_as_json, args)), kwargs=options, results=types)
        self._nodes.append(node)
        if isinstance(result, torch.Tensor):
            self._remember(result, name)
        else:
            for number, each in enumerate(tensors):
                taken = f"{name}_{number}"
                part = {"op": "getitem", "args": ({"node": name}, number), "kwargs": {}, "results": (types[number],)}
                self._nodes.append(GraphNode(name=taken, **part))
                self._remember(each, taken)

    def _reference(self, value: torch.Tensor) -> Any:
        return _ValueName(self._name(value))

    def _name(self, value: torch.Tensor) -> str:
        name = self._names.get(id(value)) or self._storages.get(_place(value))
        if name is not None:
            return name
        if type(value) not in (torch.Tensor, torch.nn.Parameter):
            raise UsageError("a tensor comes from nowhere")
        self._literals += value.numel()
        if self._literals > _MOST_LITERAL:
            raise UsageError(f"constants of more than {_MOST_LITERAL:,} elements")
        name = f"v{len(self._nodes)}"
        with torch.utils._python_dispatch._disable_current_modes():
            self._nodes.append(literal(name, value))
        self._remember(value, name)
        return name

    def _remember(self, value: torch.Tensor, name: str) -> None:
        self._kept.append(value)
        self._names[id(value)] = name
        self._storages[_place(value)] = name


class _ValueName(str):
    """The name of a value, among arguments."""


def _as_json(value: Any) -> Any:
    if isinstance(value, _ValueName):
        return {"node": str(value)}
    if isinstance(value, (list, tuple)):
        return [_as_json(each) for each in value]
    return recorded(value)


def _place(value: torch.Tensor) -> Any:
    return value.untyped_storage()._cdata, value.storage_offset(), tuple(value.shape), value.stride()


class Making:
    """What a recorded graph needs for some of its outputs: also the nodes that change a value, or a view of it, in place."""

    def __init__(self, graph: Graph) -> None:
        self.outputs = graph.outputs
        self._nodes = {node.name: node for node in graph.nodes}
        self._changes: dict[str, list[str]] = {}
        self._origin: dict[str, str] = {}  # of a view: what it is a view of; every first input counts as such
        for node in graph.nodes:
            first = node.inputs()[:1]
            self._origin[node.name] = self._origin[first[0]] if first else node.name
            if packet_of(node.op).endswith("_") and first:
                self._changes.setdefault(self._origin[first[0]], []).append(node.name)
        self._order = {name: place for place, name in enumerate(self._nodes)}

    def of(self, names: Iterable[str]) -> Graph:
        """The part of the graph that these outputs need."""
        outputs = {name: self.outputs[name] for name in names}
        needed: set[str] = set()
        waiting = list(outputs.values())
        while waiting:
            name = waiting.pop()
            if name not in needed:
                needed.add(name)
                waiting += self._nodes[name].inputs()
                waiting += self._changes.get(self._origin[name], ())
        kept = sorted(needed, key=self._order.__getitem__)
        return Graph.model_construct(nodes=tuple(self._nodes[name] for name in kept), outputs=outputs)


def with_ranges(task: TracedModule, weights: Iterable[str]) -> TracedModule:
    """The task with the ranges of its whole numbers and of buffers that are no weights, and with its constants marked."""
    if task.own is None:
        return task
    making, known = Making(task.own), set(weights)

    def ranged(each: Buffer) -> Buffer:
        drawn_anew = each.name in known or (each.role is Role.INPUT and each.element.floating)
        return each if each.role is Role.OUTPUT or drawn_anew else _ranged(each, making.of([each.name]))

    return task.model_copy(update={"buffers": tuple(map(ranged, task.buffers))})


def _ranged(buffer: Buffer, own: Graph) -> Buffer:
    if (known := _drawn_range(own, buffer)) is not None:
        return buffer.model_copy(update=dict(zip(("low", "high"), known, strict=True)))
    size_bytes = sum(8 * torch.Size(result.shape).numel() for node in own.nodes for result in node.results)
    if size_bytes > _MOST_RUN_BYTES or not buffer.elements:
        return buffer
    value = drawn(own)[buffer.name]
    least, most = value.min().item(), value.max().item()
    random = any(packet_of(node.op).startswith(_DRAWN) for node in own.nodes)
    fixed = buffer.role is not Role.INPUT and not random and (not buffer.element.floating or least != most)
    finite = all(abs(each) < float("inf") for each in (least, most))
    return buffer.model_copy(update={"low": least, "high": most, "fixed": fixed} if finite else {"fixed": fixed})


def _drawn_range(own: Graph, buffer: Buffer) -> tuple[int, int] | None:
    """The range from which whole numbers are drawn, where the graph says it."""
    if buffer.element is BufferElement.BOOL and buffer.role is Role.INPUT:
        return 0, 1
    nodes = {node.name: node for node in own.nodes}
    node = nodes[own.outputs[buffer.name]]
    while packet_of(node.op) in _SAME_VALUES and node.inputs():
        node = nodes[node.inputs()[0]]
    match node.op, node.args:
        case "aten.randint.default" | "aten.randint.generator", (int() as high, *_):
            return 0, high - 1
        case "aten.randint.low" | "aten.randint.low_generator", (int() as low, int() as high, *_):
            return low, high - 1
    return None
