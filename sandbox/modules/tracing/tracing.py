"""Traces a problem inside the jail: sizes, buffers, graph.

The file runs on tensors without values (FakeTensorMode), so that inputs of gigabytes take no memory. A file whose constructor
needs values is run again on real ones, within the memory that it may use.
"""

import inspect
import warnings
from collections.abc import Mapping, Sequence
from contextlib import AbstractContextManager, nullcontext
from types import ModuleType
from typing import Any

import torch
from torch._subclasses.fake_tensor import DataDependentOutputException, FakeTensorMode
from torch.utils import _pytree as pytree

from cudal2_agent.contract.errors import UsageError
from cudal2_agent.contract.records.module_graph import Graph, GraphNode, TensorType
from cudal2_agent.contract.records.module_task import WORKSPACE, Arithmetic
from cudal2_agent.contract.records.named_buffer import Buffer, Role
from cudal2_agent.sandbox.modules.interpreter import ELEMENTS
from cudal2_agent.sandbox.modules.tracing import graph_export
from cudal2_agent.sandbox.modules.tracing.agreement import MOST_WORK, require_equal, work_of
from cudal2_agent.sandbox.modules.tracing.problem import dims_of, init_arguments, load, plain_name
from cudal2_agent.sandbox.modules.tracing.shrinking import smaller_dims
from cudal2_agent.sandbox.modules.tracing.simplifying import over, simplified
from cudal2_agent.sandbox.modules.tracing.tape import Tape, with_ranges
from cudal2_agent.sandbox.modules.tracing.trace_messages import TracedModule, TraceRequest

_RESERVED = (WORKSPACE, "I")  # words of plans
_HALF = {Arithmetic.F16: torch.float16, Arithmetic.BF16: torch.bfloat16}


def prepare() -> None:
    """What every trace needs, done once before the first fork: no thread is started, and modules that torch loads later."""
    torch.set_num_threads(1)
    torch.set_grad_enabled(False)
    warnings.simplefilter("ignore")
    graph_export.keep_recurrent_layers_whole()
    layer = torch.nn.Sequential(torch.nn.Linear(2, 2), torch.nn.BatchNorm1d(2), torch.nn.ReLU()).eval()
    with FakeTensorMode(allow_non_fake_inputs=True) as mode:
        graph_export.export(layer, [mode.from_tensor(torch.ones(2, 2))])


def trace(request: TraceRequest) -> TracedModule:
    """Raises: UsageError for a file that is no task; whatever the file or torch raises."""
    dims = dims_of(request.problem) | request.dims
    if request.most_work is not None:
        dims = smaller_dims(dims, request.most_work, lambda tried: _loaded(request, tried, []))
        request = request.model_copy(update={"dims": dims})
    try:
        found, targets = _trace(request, dims, FakeTensorMode(allow_non_fake_inputs=True))
    except DataDependentOutputException:
        found, targets = _trace(request, dims, None)
    if work_of(found) <= MOST_WORK:
        torch.manual_seed(0)
        model, inputs = _loaded(request, dims, [])
        named = {name: value for name, value in _named_inputs(model, inputs) if isinstance(value, torch.Tensor)}
        names = [buffer.name for buffer in found.buffers if buffer.role is Role.INPUT]
        try:
            require_equal(found.graph, model, inputs, dict(zip(names, named.values(), strict=True)), targets)
        except (RuntimeError, ValueError) as exc:
            if "not implemented for" not in str(exc):  # by a CPU: some operations in half precision
                raise
            note = f"The graph was not compared with the module on values: {exc}."
            return found.model_copy(update={"notes": (*found.notes, note)})
    return found


def _trace(request: TraceRequest, dims: Mapping[str, int], mode: FakeTensorMode | None) -> tuple[TracedModule, dict[str, str]]:
    """What was traced, and the state-dict names of parameters and states by their buffers."""
    context: AbstractContextManager[Any] = mode if mode is not None else nullcontext()
    notes: list[str] = []
    tape = Tape()
    with context:
        torch.manual_seed(0)
        with tape:
            model, inputs = _loaded(request, request.dims, notes)
        named = _named_inputs(model, inputs)
        exported = graph_export.export(model, inputs)
    buffers, graph, tensors, targets = _recorded(exported, named)
    own, failed = None, tape.failed
    if not failed:
        try:
            own = tape.graph_of(tensors)
        except UsageError as exc:
            failed = str(exc)
    if failed:
        notes.append(f"How the problem draws its inputs and parameters could not be recorded: {failed}.")
    found = TracedModule(
        dims=dims,
        buffers=buffers,
        graph=graph,
        own=own,
        flops=exported.flops,
        returns=exported.returns,
        notes=tuple(dict.fromkeys(notes)),
    )
    weights = {id(value) for value in model.parameters()}
    return with_ranges(found, [name for name, value in tensors.items() if id(value) in weights]), targets


def _loaded(request: TraceRequest, dims: Mapping[str, int], notes: list[str]) -> tuple[torch.nn.Module, list[Any]]:
    module = load(request.problem, dims)
    return _model(module, request), _inputs(module, request, notes)


def _model(module: ModuleType, request: TraceRequest) -> torch.nn.Module:
    """The module in the task's arithmetic. Tensors that are plain attributes become buffers."""
    arguments, named = init_arguments(module)
    model = module.Model(*arguments, **named)
    if not isinstance(model, torch.nn.Module):
        raise UsageError("Model is no torch.nn.Module")
    model.train(request.training)
    half = _HALF.get(request.arithmetic)
    for part in model.modules():
        for name, value in list(vars(part).items()):
            if isinstance(value, torch.Tensor):
                delattr(part, name)
                part.register_buffer(name, value.detach(), persistent=False)
        for held in (part._parameters, part._buffers) if half else ():
            for name, value in held.items():
                if value is not None and value.is_floating_point():
                    changed = value.detach().to(half)
                    held[name] = torch.nn.Parameter(changed) if isinstance(value, torch.nn.Parameter) else changed
    return model.requires_grad_(False)


def _inputs(module: ModuleType, request: TraceRequest, notes: list[str]) -> list[Any]:
    found = module.get_inputs()
    if not isinstance(found, (list, tuple)):
        raise UsageError(f"get_inputs returns {type(found).__name__}; it must return a list")
    half = _HALF.get(request.arithmetic)

    def as_asked(value: Any) -> Any:
        if not isinstance(value, torch.Tensor):
            return value
        if value.layout != torch.strided:
            raise UsageError(f"an input is {value.layout}; inputs must be dense")
        if not value.is_contiguous():
            notes.append("An input that is not contiguous was made contiguous.")
        value = value.detach().contiguous()
        return value.to(half) if half and value.is_floating_point() else value

    return [pytree.tree_map(as_asked, value) for value in found]


def _named_inputs(model: torch.nn.Module, inputs: Sequence[Any]) -> list[tuple[str, Any]]:
    """Every tensor and number among the inputs, under the names that forward gives them."""
    try:
        bound = inspect.signature(model.forward).bind(*inputs)
    except TypeError as exc:
        raise UsageError(f"get_inputs gives {len(inputs)} inputs, which forward does not take: {exc}") from exc
    named = []
    for name, value in bound.arguments.items():
        leaves, _ = pytree.tree_flatten_with_path(value)
        named += [(plain_name(name + "".join(f"_{_key(each)}" for each in path)), leaf) for path, leaf in leaves]
    return named


def _key(entry: Any) -> str:
    return str(getattr(entry, "key", getattr(entry, "idx", entry)))


def _recorded(
    exported: graph_export.Exported, named: Sequence[tuple[str, Any]]
) -> tuple[tuple[Buffer, ...], Graph, dict[str, torch.Tensor], dict[str, str]]:
    """Buffers, the graph over their names, the tensors of inputs, parameters and states, and what the last two are called."""
    tensors = [(name, value) for name, value in named if isinstance(value, torch.Tensor)]
    names: dict[str, str] = {}
    count = len(exported.outputs)
    results = ["out"] if count == 1 else [f"out{number}" for number in range(count)]
    taken = {*results, *_RESERVED}
    targets: dict[str, str] = {}
    held: dict[str, torch.Tensor] = {}
    buffers = []

    def add(wanted: str, value: torch.Tensor, role: Role) -> str:
        name = wanted if wanted not in taken and not wanted.startswith("_") else f"p_{wanted}"[:60]
        while name in taken:
            name += "_"
        taken.add(name)
        if value.dtype not in ELEMENTS:
            raise UsageError(f"{wanted} has elements of {value.dtype}, of which no buffer can be")
        buffers.append(Buffer(name=name, shape=tuple(value.shape), element=ELEMENTS[value.dtype], role=role))
        held[name] = value
        return name

    for placeholder, (name, value) in zip(exported.inputs, tensors, strict=True):
        names[placeholder] = add(name, value, Role.INPUT)
    read = {name for node in exported.nodes for name in node.inputs()} | set(exported.outputs) | set(exported.states.values())
    for placeholder, (target, value) in exported.parameters.items():
        if placeholder in read or placeholder in exported.states:
            role = Role.STATE if placeholder in exported.states else Role.PARAMETER
            names[placeholder] = add(plain_name(target), value, role)
            targets[names[placeholder]] = target
    own = {node.name for node in exported.nodes}
    renamed = names | {name: f"{name}_value" for name in own & taken}
    outputs = {names[placeholder]: renamed.get(value, value) for placeholder, value in exported.states.items()}
    types = {renamed.get(node.name, node.name): node.results[0] for node in exported.nodes}
    types |= {buffer.name: TensorType(shape=buffer.shape, element=buffer.element) for buffer in buffers}
    for name, value in zip(results, exported.outputs, strict=True):
        outputs[name] = renamed.get(value, value)
        kind = types[outputs[name]]
        buffers.append(Buffer(name=name, shape=kind.shape, element=kind.element, role=Role.OUTPUT))
    graph = Graph(nodes=tuple(_renamed(node, renamed) for node in exported.nodes), outputs=outputs)
    return tuple(buffers), simplified(graph, types), held, targets


def _renamed(node: GraphNode, names: Mapping[str, str]) -> GraphNode:
    own = names.get(node.name, node.name)
    return node.model_copy(update={"name": own, "args": over(node.args, names), "kwargs": over(node.kwargs, names)})
