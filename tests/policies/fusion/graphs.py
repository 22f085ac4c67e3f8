"""Small module tasks, written by hand as a tracer writes them."""

from collections.abc import Sequence
from typing import Any

from cudal2_agent.contract.records.module_graph import Graph, GraphNode, TensorType
from cudal2_agent.contract.records.module_task import Arithmetic, ModuleTask
from cudal2_agent.contract.records.named_buffer import Buffer, BufferElement, Role

F32 = BufferElement.F32
Shape = Sequence[int]


def node(name: str, op: str, *args: Any, results: Sequence[Shape], element: BufferElement = F32, **kwargs: Any) -> GraphNode:
    """Arguments that are text name values; a text that begins with = is itself."""

    def argument(value: Any) -> Any:
        if isinstance(value, list):
            return [argument(each) for each in value]
        return ({"node": value} if not value.startswith("=") else value[1:]) if isinstance(value, str) else value

    types = tuple(TensorType(shape=tuple(shape), element=element) for shape in results)
    return GraphNode(name=name, op=op, args=tuple(map(argument, args)), kwargs=kwargs, results=types)


def task(inputs: dict[str, Shape], nodes: Sequence[GraphNode], out: str, name: str = "small") -> ModuleTask:
    """One output, of the type of the node that it names."""
    result = next(each for each in nodes if each.name == out).results[0]
    buffers = [Buffer(name=each, shape=tuple(shape), element=F32, role=Role.INPUT) for each, shape in inputs.items()]
    buffers.append(Buffer(name="out", shape=result.shape, element=result.element, role=Role.OUTPUT))
    return ModuleTask(name=name, problem="", buffers=tuple(buffers), graph=Graph(nodes=tuple(nodes), outputs={"out": out}))


def in_half(module: ModuleTask, arithmetic: Arithmetic = Arithmetic.F16) -> ModuleTask:
    """The task with every f32 value in half precision."""
    element = BufferElement(arithmetic.value)

    def half(record: Any) -> Any:
        return record.model_copy(update={"element": element}) if record.element is F32 else record

    nodes = tuple(
        node.model_copy(update={"results": tuple(half(each) for each in node.results)}) for node in module.graph.nodes
    )
    return module.model_copy(
        update={
            "buffers": tuple(half(buffer) for buffer in module.buffers),
            "graph": module.graph.model_copy(update={"nodes": nodes}),
            "arithmetic": arithmetic,
        }
    )


def softmax(rows: int, columns: int) -> ModuleTask:
    return task(
        {"x": (rows, columns)}, [node("soft", "aten._softmax.default", "x", -1, False, results=[(rows, columns)])], "soft"
    )


def linear_relu_residual(m: int, n: int, k: int) -> ModuleTask:
    """Linear, ReLU, and a residual whose dimensions are the other way round."""
    nodes = [
        node("turned", "aten.permute.default", "w", [1, 0], results=[(k, n)]),
        node("product", "aten.addmm.default", "bias", "x", "turned", results=[(m, n)]),
        node("positive", "aten.relu.default", "product", results=[(m, n)]),
        node("other", "aten.permute.default", "residual", [1, 0], results=[(m, n)]),
        node("sum", "aten.add.Tensor", "positive", "other", results=[(m, n)]),
    ]
    return task({"x": (m, k), "w": (n, k), "bias": (n,), "residual": (n, m)}, nodes, "sum")


def linear_norm_relu(rows: int, inner: int, columns: int) -> ModuleTask:
    """Linear, LayerNorm and ReLU."""
    shape = (rows, columns)
    return task(
        {"x": (rows, inner), "w": (columns, inner), "b": (columns,), "g": (columns,), "h": (columns,)},
        [
            node("turned", "aten.permute.default", "w", [1, 0], results=[(inner, columns)]),
            node("product", "aten.addmm.default", "b", "x", "turned", results=[shape]),
            node(
                "norm",
                "aten.native_layer_norm.default",
                "product",
                [columns],
                "g",
                "h",
                1e-5,
                results=[shape, (rows, 1), (rows, 1)],
            ),
            node("first", "getitem", "norm", 0, results=[shape]),
            node("positive", "aten.relu.default", "first", results=[shape]),
        ],
        "positive",
    )
