"""What tells a task from others, whatever its sizes, constants and names are: hashes of its text and of its operations."""

import re

from cudal2_agent.contract.base import digest
from cudal2_agent.contract.records.module_graph import GraphNode, TensorType
from cudal2_agent.contract.records.module_task import ModuleTask
from cudal2_agent.sandbox.modules.operators import MOVES, packet_of

_DIGITS = 24
_DOCSTRING = re.compile(r'"""(?:\\.|[^\\])*?"""' + r"|'''(?:\\.|[^\\])*?'''", re.DOTALL)
_COMMENT = re.compile(r"#[^\n]*")
_NUMBER = re.compile(r"\d[\d_.]*(?:e[+-]?\d+)?", re.IGNORECASE | re.ASCII)


def text_hash(problem: str) -> str:
    """Of a problem file without docstrings, comments, white space and the values of its numbers."""
    plain = _COMMENT.sub("", _DOCSTRING.sub("", problem))
    return digest("".join(_NUMBER.sub("0", plain).split()), _DIGITS)


def signature(task: ModuleTask) -> str:
    """Of the operations: of each its operator, and the element type and the rank of every tensor that it reads and makes.

    They are taken in the order in which the outputs need them, depth first, so that the order of lines does not matter.
    Operations that only move values are left out, and so are sizes, numbers, names, and operations that no output needs.
    """
    kinds = {buffer.name: TensorType(shape=buffer.shape, element=buffer.element) for buffer in task.buffers}
    kinds |= {node.name: node.results[0] for node in task.graph.nodes}
    nodes = {node.name: node for node in task.graph.nodes}
    told = [_told(node, kinds) for node in _in_need(task, nodes) if node.op != "getitem" and packet_of(node.op) not in MOVES]
    return digest(told, _DIGITS)


def sizes_hash(task: ModuleTask) -> str:
    """Of the operations with the shapes of all buffers."""
    return digest([signature(task), [buffer.shape for buffer in task.buffers]], _DIGITS)


def _told(node: GraphNode, kinds: dict[str, TensorType]) -> list[object]:
    return [node.op, *(_kind(kinds[name]) for name in node.inputs()), "to", *(_kind(each) for each in node.results)]


def _kind(tensor: TensorType) -> str:
    return f"{tensor.element}:{len(tensor.shape)}"


def _in_need(task: ModuleTask, nodes: dict[str, GraphNode]) -> list[GraphNode]:
    """The operations that the outputs need, each behind those that it reads."""
    found: dict[str, GraphNode] = {}
    left = [(name, False) for name in reversed(list(task.graph.outputs.values()))]
    while left:
        name, is_ready = left.pop()
        if name not in nodes or name in found:
            continue
        if is_ready:
            found[name] = nodes[name]
        else:
            left += [(name, True), *((each, False) for each in reversed(nodes[name].inputs()))]
    return list(found.values())
