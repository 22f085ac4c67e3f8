"""From a module to its graph: torch.export, decompositions, and the record. Runs inside the jail.

Operators of `operators.py` stay whole; everything else is taken apart into core ATen. Recurrent layers stay one operation.
"""

import math
from collections.abc import Sequence
from typing import Any, NamedTuple

import torch
from torch.export.graph_signature import InputKind, OutputKind
from torch.utils import _pytree as pytree

from cudal2_agent.contract.errors import UsageError
from cudal2_agent.contract.records.module_graph import MAX_NODES, GraphNode, TensorType
from cudal2_agent.sandbox.modules.interpreter import ELEMENTS
from cudal2_agent.sandbox.modules.operators import NAMES, RECURRENT, WHOLE

_MOST_LITERAL = 1 << 16  # elements of a constant in the graph
_TOO_MANY = f"the module has too many operations; {MAX_NODES:,} are allowed"
_LIBRARY = torch.library.Library("cudal2_recurrent", "DEF")


class Exported(NamedTuple):
    """`inputs`, `parameters`: by the name in the graph, the tensor; parameters under their state-dict names too.

    `states`: names in the graph of what forward updates. `outputs`: values of the results, in order.
    `returns`: as `ModuleTask.returns`.
    """

    nodes: list[GraphNode]
    inputs: dict[str, torch.Tensor]
    parameters: dict[str, tuple[str, torch.Tensor]]
    states: dict[str, str]
    outputs: list[str]
    flops: int
    returns: Any


def export(model: torch.nn.Module, inputs: Sequence[Any]) -> Exported:
    """Raises: UsageError for what cannot be a task; whatever torch raises."""
    returned: list[Any] = []
    hook = model.register_forward_hook(lambda _, __, result: _tensors_of(result, returned))
    program = torch.export.export(model, tuple(inputs), strict=False)
    hook.remove()
    program = program.run_decompositions(_table())
    signature = program.graph_signature
    mutated = [spec.target for spec in signature.output_specs if spec.kind is OutputKind.USER_INPUT_MUTATION]
    if mutated:
        raise UsageError(f"forward changes its input {mutated[0]}; it must compute a new tensor")
    found = Exported([], {}, {}, {}, [], 0, None)
    specs = {spec.arg.name: spec for spec in signature.input_specs}
    tensors = {**dict(model.named_parameters(remove_duplicate=False)), **dict(model.named_buffers(remove_duplicate=False))}
    flops = 0
    for node in program.graph.nodes:
        if node.op == "placeholder":
            spec = specs[node.name]
            if spec.kind is InputKind.USER_INPUT:
                if isinstance(node.meta.get("val"), torch.Tensor):
                    found.inputs[node.name] = node.meta["val"]
            elif spec.kind is InputKind.CONSTANT_TENSOR and spec.target not in tensors:
                found.nodes.append(literal(node.name, program.constants[spec.target]))
            else:
                found.parameters[node.name] = (str(spec.target), tensors[spec.target])
        elif node.op == "call_function" and node.meta.get("val") is not None:  # others only check
            found.nodes.append(_recorded(node))
            flops += _flops(node)
        elif node.op == "get_attr":
            raise UsageError(f"forward calls {node.target}, a part of control flow, which cannot be traced")
    if len(found.nodes) > MAX_NODES:
        raise UsageError(_TOO_MANY)
    by_target = {target: name for name, (target, _) in found.parameters.items()}
    for spec in signature.output_specs:
        if spec.kind in (OutputKind.BUFFER_MUTATION, OutputKind.PARAMETER_MUTATION):
            found.states[by_target[spec.target]] = spec.arg.name
        elif spec.kind is OutputKind.USER_OUTPUT:
            found.outputs.append(spec.arg.name)
    return found._replace(flops=flops, returns=returned[0])


def _tensors_of(result: Any, returned: list[Any]) -> tuple[torch.Tensor, ...]:
    """The tensors among the results of forward, each once in order; `returned` gets the form that they stand in."""
    tensors = [each for each in pytree.tree_leaves(result) if isinstance(each, torch.Tensor)]
    if not tensors:
        raise UsageError(f"forward returns no tensor but {type(result).__name__}")
    names = iter(["out"] if len(tensors) == 1 else [f"out{number}" for number in range(len(tensors))])

    def form(value: Any) -> Any:
        match value:
            case torch.Tensor():
                return next(names)
            case None:
                return None
            case list() | tuple():
                return {"list" if isinstance(value, list) else "tuple": [form(each) for each in value]}
            case dict() if all(isinstance(key, str) for key in value):
                return {"dict": {key: form(each) for key, each in value.items()}}
        raise UsageError(f"forward returns a {type(value).__name__}; it must return tensors")

    returned[:] = [form(result)]
    return tuple(tensors)


def literal(name: str, value: torch.Tensor) -> GraphNode:
    """A constant tensor as an operation. Raises: UsageError for one that is too large."""
    if value.numel() > _MOST_LITERAL:
        raise UsageError(f"a constant of {value.numel():,} elements: register it as a buffer that torch operators make")
    flat = value.detach().cpu().flatten()
    numbers = [_number(each) for each in flat.tolist()]
    result = (type_of(value),)
    dtype = {"dtype": str(ELEMENTS[value.dtype])}
    if value.numel() and all(each == numbers[0] for each in numbers):
        args = (list(value.shape), numbers[0])
        return GraphNode(name=name, op="aten.full.default", args=args, kwargs={"dtype": dtype}, results=result)
    return GraphNode(name=name, op="aten.lift_fresh_copy.default", args=(numbers,), kwargs={}, results=result)


def _table() -> dict[Any, Any]:
    """Decompositions of the export without those of operators that stay whole."""
    table = torch.export.default_decompositions()
    for overload in list(table):
        if overload.namespace == "aten" and overload._schema.name.removeprefix("aten::") in WHOLE:
            table.pop(overload)
    return table  # type: ignore[return-value]


def _recorded(node: torch.fx.Node) -> GraphNode:
    target = node.target
    if getattr(target, "__name__", "") == "getitem":
        op = "getitem"
    elif isinstance(target, torch._ops.OpOverload):
        if target.namespace == "cudal2_recurrent":
            op = f"aten.{RECURRENT_OVERLOADS[target._opname]}"
        else:
            op = str(target)
            if torch.Tag.nondeterministic_seeded in target.tags and not _draws_nothing(node):
                raise UsageError(f"forward draws random numbers ({op}); it must compute the same from the same inputs")
            if target.namespace != "aten" or target._opname not in NAMES:
                raise UsageError(f"forward uses {op}, which is not among the operators of tasks")
    else:
        raise UsageError(f"forward uses {target}, which is not among the operators of tasks")
    values = node.meta["val"]
    results = values if isinstance(values, (tuple, list)) else (values,)
    types = tuple(type_of(value) for value in results if isinstance(value, torch.Tensor))
    if not types:
        raise UsageError(f"forward uses {op}, whose result is no tensor")
    kwargs = {name: recorded(value) for name, value in node.kwargs.items() if name not in ("device", "pin_memory", "layout")}
    return GraphNode(name=node.name, op=op, args=tuple(map(recorded, node.args)), kwargs=kwargs, results=types)


def _draws_nothing(node: torch.fx.Node) -> bool:
    """Attention without dropout."""
    dropout = node.kwargs.get("dropout_p", node.args[4] if len(node.args) > 4 else 0.0)
    return getattr(node.target, "_opname", "") == "scaled_dot_product_attention" and not dropout


def recorded(value: Any) -> Any:
    """An argument of an operation as JSON. Raises: UsageError."""
    match value:
        case torch.fx.Node():
            return {"node": value.name}
        case torch.dtype():
            if value not in ELEMENTS:
                raise UsageError(f"forward uses {value}, of which no buffer can be")
            return {"dtype": str(ELEMENTS[value])}
        case torch.memory_format():
            return {"memory_format": str(value).removeprefix("torch.")}
        case bool() | None | str() | int():
            return value
        case float():
            return _number(value)
        case list() | tuple():
            return [recorded(each) for each in value]
        case torch.device() | torch.layout():
            return None
        case torch.SymInt() | torch.SymFloat() | torch.SymBool():
            raise UsageError("a size in forward depends on values of a tensor, which cannot be traced")
    raise UsageError(f"forward has an argument of type {type(value).__name__}, which cannot be traced")


def _number(value: Any) -> Any:
    return {"float": str(value)} if isinstance(value, float) and not math.isfinite(value) else value


def type_of(value: torch.Tensor) -> TensorType:
    """Raises: UsageError for what no buffer can hold."""
    if value.dtype not in ELEMENTS:
        raise UsageError(f"forward computes {value.dtype}, of which no buffer can be")
    if not all(isinstance(size, int) for size in value.shape):
        raise UsageError("a size in forward depends on values of a tensor, which cannot be traced")
    return TensorType(shape=tuple(value.shape), element=ELEMENTS[value.dtype])


def _flops(node: torch.fx.Node) -> int:
    """Of matrix products and convolutions; a multiply-add counts as two."""
    name = node.target._opname if isinstance(node.target, torch._ops.OpOverload) else ""
    shapes = [tuple(each.meta["val"].shape) for each in node.all_input_nodes if isinstance(each.meta.get("val"), torch.Tensor)]
    value = node.meta.get("val")
    match name:
        case "mm" | "bmm":
            return 2 * value.numel() * shapes[0][-1]
        case "addmm" | "baddbmm":
            return 2 * value.numel() * node.args[1].meta["val"].shape[-1]
        case "mv" | "dot":
            return 2 * math.prod(shapes[0])
        case "addmv":
            return 2 * math.prod(node.args[1].meta["val"].shape)
        case "convolution":
            weight = node.args[1].meta["val"].shape
            transposed = bool(node.args[6])
            dense = node.args[0].meta["val"].numel() if transposed else value.numel()
            return 2 * dense * math.prod(weight[1:])
        case "scaled_dot_product_attention":
            query, key, worth = (each.meta["val"].shape for each in node.args[:3])
            return 2 * math.prod(query[:-1]) * key[-2] * (query[-1] + worth[-1])
        case "lstm" | "gru" | "rnn_tanh" | "rnn_relu":
            weights = [each.meta["val"].shape for each in node.args[2]]
            rows = math.prod(node.args[0].meta["val"].shape[:-1])
            return 2 * rows * sum(math.prod(shape) for shape in weights if len(shape) == 2)
    return 0


RECURRENT_OVERLOADS = {"lstm": "lstm.input", "gru": "gru.input", "rnn_tanh": "rnn_tanh.input", "rnn_relu": "rnn_relu.input"}


def keep_recurrent_layers_whole() -> None:
    """Let torch.nn's LSTM, GRU and RNN become one operation each. Called once, before a problem's file runs."""
    tail = "bool has_biases, int num_layers, float dropout, bool train, bool bidirectional, bool batch_first"
    _LIBRARY.define(f"lstm(Tensor input, Tensor[] hx, Tensor[] params, {tail}) -> (Tensor, Tensor, Tensor)")
    for name in RECURRENT[1:]:
        _LIBRARY.define(f"{name}(Tensor input, Tensor hx, Tensor[] params, {tail}) -> (Tensor, Tensor)")
    for name in RECURRENT:
        original = getattr(torch._VF, name)
        ours = getattr(torch.ops.cudal2_recurrent, name)
        _LIBRARY.impl(name, _real(name), "CPU")
        torch.library.register_fake(f"cudal2_recurrent::{name}", _shapes_of, lib=_LIBRARY)
        setattr(torch._VF, name, _chosen(original, ours))


def _chosen(original: Any, ours: Any) -> Any:
    def call(*args: Any) -> Any:
        packed = isinstance(args[2], torch.Tensor)  # a packed sequence: (data, sizes, hx, …)
        if packed:
            raise UsageError("forward packs sequences, whose sizes are values of a tensor; that cannot be traced")
        if args[5] and args[6]:
            return original(*args)  # dropout between the layers, in training
        return ours(*args)

    return call


def _real(name: str) -> Any:
    def call(*args: Any) -> Any:
        with torch._C._AutoDispatchBelowAutograd():
            return getattr(torch.ops.aten, name).input(*args)

    return call


def _shapes_of(data: torch.Tensor, hx: Any, _: Sequence[torch.Tensor], *options: Any) -> Any:
    first = hx[0] if isinstance(hx, (list, tuple)) else hx
    width = first.shape[-1] * (2 if options[4] else 1)
    out = data.new_empty((*data.shape[:-1], width))
    if isinstance(hx, (list, tuple)):
        return out, torch.empty_like(hx[0]), torch.empty_like(hx[1])
    return out, torch.empty_like(first)
