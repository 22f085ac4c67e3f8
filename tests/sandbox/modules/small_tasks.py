"""Small tasks by hand, for tests of what follows the tracer."""

from collections.abc import Sequence
from typing import Any

from cudal2_agent.contract.records.module_graph import Graph, GraphNode, TensorType
from cudal2_agent.contract.records.module_task import Arithmetic, ModuleTask
from cudal2_agent.contract.records.named_buffer import Buffer, BufferElement, Role

Shape = tuple[int, ...]


def of(name: str) -> dict[str, str]:
    return {"node": name}


def node(name: str, op: str, args: Sequence[Any], shape: Shape, element: str = "f32") -> GraphNode:
    return GraphNode(name=name, op=op, args=tuple(args), results=(TensorType(shape=shape, element=BufferElement(element)),))


def task(
    nodes: Sequence[GraphNode],
    inputs: dict[str, Shape],
    parameters: dict[str, Shape] | None = None,
    arithmetic: Arithmetic = Arithmetic.F32,
    elements: dict[str, str] | None = None,
) -> ModuleTask:
    """The last node is the output."""
    kinds = {name: BufferElement(element) for name, element in (elements or {}).items()}
    last = nodes[-1].results[0]
    sizes = [(name, shape, Role.INPUT) for name, shape in inputs.items()]
    sizes += [(name, shape, Role.PARAMETER) for name, shape in (parameters or {}).items()]
    buffers = [Buffer(name=n, shape=shape, element=kinds.get(n, BufferElement.F32), role=role) for n, shape, role in sizes]
    buffers.append(Buffer(name="out", shape=last.shape, element=last.element, role=Role.OUTPUT))
    graph = Graph(nodes=tuple(nodes), outputs={"out": nodes[-1].name})
    return ModuleTask(name="small", problem="", buffers=tuple(buffers), graph=graph, arithmetic=arithmetic)


def linear_relu(rows: int = 16, k: int = 64, columns: int = 32) -> ModuleTask:
    """relu(x @ weight + bias)."""
    return task(
        [
            node("addmm", "aten.addmm.default", [of("bias"), of("x"), of("weight")], (rows, columns)),
            node("relu", "aten.relu.default", [of("addmm")], (rows, columns)),
        ],
        {"x": (rows, k)},
        {"weight": (k, columns), "bias": (columns,)},
    )


def softmax(rows: int = 8, columns: int = 96) -> ModuleTask:
    return task([node("softmax", "aten._softmax.default", [of("x"), -1, False], (rows, columns))], {"x": (rows, columns)})


def layer_norm(rows: int = 8, columns: int = 96) -> ModuleTask:
    norm = GraphNode(
        name="norm",
        op="aten.native_layer_norm.default",
        args=(of("x"), [columns], of("weight"), of("bias"), 1e-5),
        results=tuple(TensorType(shape=shape, element=BufferElement.F32) for shape in ((rows, columns), (rows, 1), (rows, 1))),
    )
    return task(
        [norm, node("y", "getitem", [of("norm"), 0], (rows, columns))],
        {"x": (rows, columns)},
        {"weight": (columns,), "bias": (columns,)},
    )


def argmax(rows: int = 8, columns: int = 96) -> ModuleTask:
    return task([node("best", "aten.argmax.default", [of("x"), 1], (rows,), "i64")], {"x": (rows, columns)})


def cross_entropy(rows: int = 16, columns: int = 96) -> ModuleTask:
    results = tuple(TensorType(shape=(), element=BufferElement.F32) for _ in range(2))
    loss = ("aten.nll_loss_forward.default", (of("logs"), of("target"), None, 1, -100))
    return task(
        [
            node("logs", "aten._log_softmax.default", [of("x"), 1, False], (rows, columns)),
            GraphNode(name="loss", op=loss[0], args=loss[1], results=results),
            node("mean", "getitem", [of("loss"), 0], ()),
        ],
        {"x": (rows, columns), "target": (rows,)},
        elements={"target": "i64"},
    )
