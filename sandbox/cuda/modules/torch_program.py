"""A task's graph as a torch program: what PyTorch runs eagerly, and what it compiles.

The graph is data, and only operators of `sandbox/modules/operators.py` come into the program. Unlike the interpreter, it copies
nothing at its end and looks nothing up while it runs.
"""

import operator as python_operator
from typing import Any

import torch
from torch import fx

from cudal2_agent.contract.records.module_graph import GraphNode
from cudal2_agent.contract.records.module_task import ModuleTask
from cudal2_agent.contract.records.named_buffer import BufferElement, Role
from cudal2_agent.sandbox.modules.interpreter import TYPES
from cudal2_agent.sandbox.modules.operators import operator

_VIEW, _LITERAL = "aten.view.default", "aten.lift_fresh_copy.default"


def read_buffers(task: ModuleTask) -> list[str]:
    """Names of what the program takes, in order: inputs, parameters and states."""
    return [buffer.name for buffer in task.buffers if buffer.role is not Role.OUTPUT]


def written_buffers(task: ModuleTask) -> list[str]:
    """Names of what the program returns, in order: outputs and states."""
    return [buffer.name for buffer in task.buffers if buffer.role.written]


def program_of(task: ModuleTask, device: torch.device) -> fx.GraphModule:
    """A callable of the tensors of `read_buffers` that returns those of `written_buffers`.

    Raises: ValueError for an operator that may not run.
    """
    graph, known = fx.Graph(), dict[str, Any]()
    for name in read_buffers(task):
        known[name] = graph.placeholder(f"buffer_{name}")
    for node in task.graph.nodes:
        known[node.name] = _added(graph, node, known, device)
    graph.output(tuple(known[task.graph.outputs[name]] for name in written_buffers(task)))
    graph.eliminate_dead_code()
    return fx.GraphModule(torch.nn.Module(), graph)


def _added(graph: fx.Graph, node: GraphNode, known: dict[str, Any], device: torch.device) -> Any:
    args = tuple(_argument(value, known) for value in node.args)
    kwargs = {name: _argument(value, known) for name, value in node.kwargs.items()}
    if node.op == "getitem":
        return graph.call_function(python_operator.getitem, args)
    call = operator(node.op)
    if node.op == _LITERAL and not isinstance(args[0], fx.Node):
        result = node.results[0]
        made = graph.call_function(torch.tensor, (args[0],), {"dtype": TYPES[result.element], "device": device})
        return graph.call_function(torch.ops.aten.reshape.default, (made, list(result.shape)))
    if any(argument.name == "device" for argument in call._schema.arguments):
        kwargs["device"] = device
    if node.op == _VIEW:  # of a value in another order of memory too
        call = torch.ops.aten.reshape.default
    return graph.call_function(call, args, kwargs)


def _argument(value: Any, known: dict[str, Any]) -> Any:
    match value:
        case {"node": str() as name}:
            return known[name]
        case {"dtype": str() as element}:
            return TYPES[BufferElement(element)]
        case {"float": str() as number}:
            return float(number)
        case {"memory_format": str() as name}:
            return getattr(torch, name)
        case list() | tuple():
            return [_argument(each, known) for each in value]
    return value
