"""Hashes that tell a task from others: what changes them, and what does not."""

import pytest

from cudal2_agent.agent.tasks.signature import signature, sizes_hash, text_hash
from cudal2_agent.contract.records.module_graph import Graph, GraphNode, TensorType
from cudal2_agent.contract.records.module_task import ModuleTask
from cudal2_agent.contract.records.named_buffer import BufferElement
from tests.doubles.modules import PROBLEM, relu_of_sum

TEXT = PROBLEM.format(rows=32)


def over(task: ModuleTask, *nodes: GraphNode, out: str) -> ModuleTask:
    """The task with other operations."""
    return task.model_copy(update={"graph": Graph(nodes=nodes, outputs={"out": out})})


def node(name: str, op: str, *inputs: str, shape: tuple[int, ...] = (32, 64)) -> GraphNode:
    arguments = tuple({"node": each} for each in inputs)
    return GraphNode(name=name, op=op, args=arguments, results=(TensorType(shape=shape, element=BufferElement.F32),))


@pytest.mark.parametrize(
    "same",
    [
        PROBLEM.format(rows=4096),
        TEXT.replace("columns = 64", "columns = 64  # of a row"),
        TEXT.replace("    def forward", '    """Adds, then\n    rectifies."""\n\n    def forward'),
        TEXT.replace("x + y", "x+y").replace("\n\n", "\n"),
    ],
    ids=["sizes", "comment", "docstring", "space"],
)
def test_a_text_is_known_again(same: str) -> None:
    assert same != TEXT
    assert text_hash(same) == text_hash(TEXT)


@pytest.mark.parametrize("other", [TEXT.replace("relu", "tanh"), TEXT.replace("x + y", "y + x")])
def test_another_text_has_another_hash(other: str) -> None:
    assert text_hash(other) != text_hash(TEXT)


def test_sizes_and_names_are_not_in_a_signature() -> None:
    task = relu_of_sum(32)
    renamed = over(task, node("first", "aten.add.Tensor", "x", "y"), node("second", "aten.relu.default", "first"), out="second")
    assert signature(task) == signature(relu_of_sum(4096)) == signature(renamed)
    assert sizes_hash(task) != sizes_hash(relu_of_sum(4096))
    assert sizes_hash(task) == sizes_hash(renamed)


def test_the_order_of_lines_dead_operations_and_views_are_not_in_a_signature() -> None:
    task, tanh, relu = relu_of_sum(), node("t", "aten.tanh.default", "x"), node("r", "aten.relu.default", "y")
    total = node("s", "aten.add.Tensor", "t", "r")
    told = signature(over(task, tanh, relu, total, out="s"))
    assert signature(over(task, relu, tanh, total, out="s")) == told
    assert signature(over(task, relu, tanh, node("dead", "aten.exp.default", "x"), total, out="s")) == told
    view = node("v", "aten.view.default", "s", shape=(64, 32))
    assert signature(over(task, tanh, relu, total, view, out="v")) == told


def test_operations_ranks_and_elements_are_in_a_signature() -> None:
    task = relu_of_sum()
    add, relu = task.graph.nodes
    seen = {
        signature(task),
        signature(over(task, relu.model_copy(update={"args": ({"node": "x"},)}), out="relu")),
        signature(over(task, add, relu, node("again", "aten.relu.default", "relu"), out="again")),
        signature(over(task, add, node("relu", "aten.tanh.default", "add"), out="relu")),
        signature(over(task, add, node("relu", "aten.relu.default", "add", shape=(4, 8, 64)), out="relu")),
    }
    assert len(seen) == 5
