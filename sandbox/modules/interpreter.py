"""Runs a module's graph with torch: the reference, in float64; what eager PyTorch computes; a program with a fault.

Covered: only operators of `operators.py` run, so that a graph may come from a stranger; element types as the task has them,
or wider; a graph with an operation left out.
Not covered: memory; a graph of gigabytes takes what its values take, each until its last reader has run.
"""

from collections.abc import Callable, Mapping
from typing import Any

import torch

from cudal2_agent.contract.records.module_graph import Graph, GraphNode, TensorType
from cudal2_agent.contract.records.module_task import ModuleTask
from cudal2_agent.contract.records.named_buffer import BufferElement
from cudal2_agent.sandbox.modules import wide_convolution
from cudal2_agent.sandbox.modules.operators import operator

TYPES: dict[BufferElement, torch.dtype] = {each: getattr(torch, each.torch_name) for each in BufferElement}
ELEMENTS = {value: key for key, value in TYPES.items()}
_VIEW = "aten.view.default"
# Runs a node's operation, `call(*args, **kwargs)`, or something in its place.
Around = Callable[[GraphNode, Callable[..., Any], list[Any], dict[str, Any]], Any]
_LITERAL = "aten.lift_fresh_copy.default"  # its first argument may be numbers


class Interpreter:
    """A graph on a device. `floating`: the type that stands in for every floating type of the graph; None keeps them.
    `drawing`: whether operators that draw numbers and change their own tensors run too.

    Raises: ValueError for an operator that may not run.
    """

    def __init__(
        self, graph: Graph, device: str = "cpu", floating: BufferElement | None = None, *, drawing: bool = False
    ) -> None:
        self._graph, self._device, self._floating = graph, torch.device(device), floating
        self._operators = [None if node.op == "getitem" else operator(node.op, drawing=drawing) for node in graph.nodes]
        self._last_readers = _last_readers(graph)

    def run(self, values: Mapping[str, torch.Tensor], around: Around | None = None) -> dict[str, torch.Tensor]:
        """Values of the outputs and states by their names. `values`: of every input, parameter and state. `around`: runs every
        operation in place of a plain call.

        Raises: ValueError for a value that is missing, or an operation that these values do not suit.
        """
        known: dict[str, Any] = {name: self._converted(value) for name, value in values.items()}
        with torch.no_grad():
            for node, call in zip(self._graph.nodes, self._operators, strict=True):
                try:
                    known[node.name] = self._result(node, call, known, around)
                except (RuntimeError, IndexError, TypeError, KeyError) as exc:
                    reason = f"no value for {exc}" if isinstance(exc, KeyError) else str(exc).split("\n", 1)[0]
                    raise ValueError(f"{node.name} ({node.op}): {reason}") from exc
                for name in self._last_readers.get(node.name, ()):
                    known.pop(name, None)
        return _of_their_own({name: known[source] for name, source in self._graph.outputs.items()}, values)

    def _converted(self, value: torch.Tensor) -> torch.Tensor:
        floating = TYPES[self._floating] if self._floating and value.is_floating_point() else value.dtype
        return value.to(self._device, floating)

    def _result(self, node: GraphNode, call: Any, known: Mapping[str, Any], around: Around | None) -> Any:
        args = [self._argument(value, known) for value in node.args]
        kwargs = {name: self._argument(value, known) for name, value in node.kwargs.items()}
        if call is None:
            return args[0][args[1]]
        if node.op == _LITERAL and not isinstance(args[0], torch.Tensor):
            shape = node.results[0].shape
            return torch.tensor(args[0], dtype=self._type(node.results[0].element), device=self._device).reshape(shape)
        if any(argument.name == "device" for argument in call._schema.arguments):
            kwargs["device"] = self._device
        if node.op == _VIEW:  # of a value in another order of memory too
            return args[0].reshape(args[1])
        if node.op == wide_convolution.OPERATOR and wide_convolution.suits(args):
            call = wide_convolution.convolution
        return around(node, call, args, kwargs) if around else call(*args, **kwargs)

    def _type(self, element: BufferElement) -> torch.dtype:
        return TYPES[self._floating if self._floating and element.floating else element]

    def _argument(self, value: Any, known: Mapping[str, Any]) -> Any:
        match value:
            case {"node": str() as name}:
                return known[name]
            case {"dtype": str() as element}:
                return self._type(BufferElement(element))
            case {"float": str() as number}:
                return float(number)
            case {"memory_format": str() as name}:
                return getattr(torch, name)
            case list() | tuple():
                return [self._argument(each, known) for each in value]
        return value


def _of_their_own(outputs: Mapping[str, torch.Tensor], values: Mapping[str, torch.Tensor]) -> dict[str, torch.Tensor]:
    """Outputs, dense, none of which changes with another or with a value that was given."""
    seen, found = {each.untyped_storage().data_ptr() for each in values.values()}, {}
    for name, value in outputs.items():
        storage = value.untyped_storage()
        own = storage.data_ptr() not in seen and storage.nbytes() == value.nbytes and value.is_contiguous()
        found[name] = value if own else value.clone(memory_format=torch.contiguous_format)
        seen.add(storage.data_ptr())
    return found


def own_values(task: ModuleTask, seed: int = 0, device: str = "cpu") -> dict[str, torch.Tensor]:
    """Inputs, parameters and states as the problem makes them, drawn anew by the seed.

    Raises: ValueError where the task does not say how it makes them.
    """
    if task.own is None:
        raise ValueError(f"{task.name} does not say how it draws its inputs")
    return drawn(task.own, seed, device)


def drawn(own: Graph, seed: int = 0, device: str = "cpu") -> dict[str, torch.Tensor]:
    """The values of a graph that draws numbers."""
    where = torch.device(device)
    with torch.random.fork_rng(devices=[where] if where.type == "cuda" else []):
        torch.manual_seed(seed)
        return Interpreter(own, device, drawing=True).run({})


def without(task: ModuleTask, name: str) -> Graph | None:
    """The task's graph with an operation left out: its first input of the same shape, or that broadcasts to it, in its place.

    None where nothing can stand in, because no input of the operation has a shape and an element that fit.
    """
    types = {each.name: TensorType(shape=each.shape, element=each.element) for each in task.buffers}
    types |= {node.name: node.results[0] for node in task.graph.nodes if len(node.results) == 1}
    node = next(node for node in task.graph.nodes if node.name == name)
    if node.op == "getitem" or len(node.results) != 1:
        return None
    for source in node.inputs():
        if source in types and (stand_in := _stand_in(node, source, types[source], node.results[0])) is not None:
            nodes = tuple(stand_in if each is node else each for each in task.graph.nodes)
            return task.graph.model_copy(update={"nodes": nodes})
    return None


def _stand_in(node: GraphNode, source: str, found: TensorType, wanted: TensorType) -> GraphNode | None:
    if found.element != wanted.element or len(found.shape) > len(wanted.shape):
        return None
    pairs = zip(found.shape[::-1], wanted.shape[::-1], strict=False)
    if not all(have in (1, want) for have, want in pairs):
        return None
    update = {"op": "aten.expand_copy.default", "args": ({"node": source}, list(wanted.shape)), "kwargs": {}}
    return node.model_copy(update=update)


def _last_readers(graph: Graph) -> dict[str, list[str]]:
    """By the name of a node: the values that nobody reads after it."""
    last: dict[str, str] = {}
    for node in graph.nodes:
        last.update(dict.fromkeys(node.inputs(), node.name))
    kept = set(graph.outputs.values())
    found: dict[str, list[str]] = {}
    for value, reader in last.items():
        if value not in kept:
            found.setdefault(reader, []).append(value)
    return found
