"""A task that is a module: the rectified sum of two inputs, at any size."""

from cudal2_agent.contract.records.module_graph import Graph, GraphNode, TensorType
from cudal2_agent.contract.records.module_task import ModuleTask
from cudal2_agent.contract.records.named_buffer import Buffer, BufferElement, Role

PROBLEM = """import torch

rows = {rows}
columns = 64


class Model(torch.nn.Module):
    def forward(self, x, y):
        return torch.relu(x + y)


def get_inputs():
    return [torch.randn(rows, columns), torch.randn(rows, columns)]


def get_init_inputs():
    return []
"""


def relu_of_sum(rows: int = 32, **changes: object) -> ModuleTask:
    """`changes`: fields of the task."""
    shape, element = (rows, 64), BufferElement.F32
    result = (TensorType(shape=shape, element=element),)
    task = ModuleTask(
        name="relu of sum",
        problem=PROBLEM.format(rows=rows),
        dims={"rows": rows, "columns": 64},
        buffers=tuple(
            Buffer(name=name, shape=shape, element=element, role=role)
            for name, role in (("x", Role.INPUT), ("y", Role.INPUT), ("out", Role.OUTPUT))
        ),
        graph=Graph(
            nodes=(
                GraphNode(name="add", op="aten.add.Tensor", args=({"node": "x"}, {"node": "y"}), results=result),
                GraphNode(name="relu", op="aten.relu.default", args=({"node": "add"},), results=result),
            ),
            outputs={"out": "relu"},
        ),
    )
    return task.model_copy(update=changes)
