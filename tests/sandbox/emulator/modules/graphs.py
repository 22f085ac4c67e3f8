"""Modules as tasks, written by hand: buffers and ATen operations, as the tracer makes them from problem files."""

import math
from collections.abc import Mapping, Sequence
from typing import Any

from cudal2_agent.contract.records.module_graph import Graph, GraphNode, TensorType
from cudal2_agent.contract.records.module_task import Arithmetic, ModuleTask
from cudal2_agent.contract.records.named_buffer import Buffer, BufferElement, Role

Shape = tuple[int, ...]
F32 = "f32"
HALF = ("f16", "bf16")  # elements that are the arithmetic of a task too


def value(name: str) -> dict[str, str]:
    return {"node": name}


def buffer(name: str, shape: Shape, role: str = "input", element: str = F32) -> Buffer:
    return Buffer(name=name, shape=shape, element=BufferElement(element), role=Role(role))


def node(name: str, op: str, *args: Any, shape: Shape | Sequence[Shape], element: str = F32, **kwargs: Any) -> GraphNode:
    """One operation. `shape`: of its result, or of each of several."""
    shapes = list(shape) if shape and isinstance(shape[0], tuple) else [shape]
    results = tuple(TensorType(shape=each, element=BufferElement(element)) for each in shapes)
    return GraphNode(name=name, op=op if op == "getitem" else f"aten.{op}", args=args, kwargs=kwargs, results=results)


def module(
    name: str,
    dims: Mapping[str, int],
    buffers: Sequence[Buffer],
    nodes: Sequence[GraphNode],
    outputs: Mapping[str, str],
    flops: int = 0,
    **fields: Any,
) -> ModuleTask:
    graph = Graph(nodes=tuple(nodes), outputs=dict(outputs))
    if (halves := [each.element.value for each in buffers if each.element.value in HALF]) and "arithmetic" not in fields:
        fields["arithmetic"] = Arithmetic(halves[0])
    return ModuleTask(
        name=name, problem=f"# {name}", dims=dict(dims), buffers=tuple(buffers), graph=graph, flops=flops, **fields
    )


def row_softmax(rows: int, columns: int, element: str = F32, dim: int = -1) -> ModuleTask:
    at = (rows, columns)
    return module(
        "softmax",
        {"rows": rows, "columns": columns},
        [buffer("x", at, element=element), buffer("out", at, "output", element)],
        [node("made", "_softmax.default", value("x"), dim, False, shape=at, element=element)],
        {"out": "made"},
    )


def column_softmax(rows: int, columns: int) -> ModuleTask:
    return row_softmax(rows, columns, dim=0)


def layer_norm(rows: int, columns: int, element: str = F32) -> ModuleTask:
    at = (rows, columns)
    return module(
        "layer-norm",
        {"rows": rows, "columns": columns},
        [
            buffer("x", at, element=element),
            buffer("weight", (columns,), "parameter", element),
            buffer("bias", (columns,), "parameter", element),
            buffer("out", at, "output", element),
        ],
        [
            _norm("x", "weight", "bias", at, element),
            node("made", "getitem", value("norm"), 0, shape=at, element=element),
        ],
        {"out": "made"},
    )


def _norm(x: str, weight: str, bias: str, at: Shape, element: str) -> GraphNode:
    operands, kept = (value(x), [at[-1]], value(weight), value(bias), 1e-5), (at[0], 1)
    return node("norm", "native_layer_norm.default", *operands, shape=[at, kept, kept], element=element)


def gelu(count: int, element: str = F32) -> ModuleTask:
    return module(
        "gelu",
        {"count": count},
        [buffer("x", (count,), element=element), buffer("out", (count,), "output", element)],
        [
            node("relu", "relu.default", value("x"), shape=(count,), element=element),
            node("made", "gelu.default", value("relu"), shape=(count,), element=element),
        ],
        {"out": "made"},
    )


def _linear(rows: int, columns: int, depth: int, element: str, prefix: str = "") -> tuple[list[Buffer], list[GraphNode]]:
    """`product`, of x and a weight with a bias."""
    weight, bias = f"{prefix}weight", f"{prefix}bias"
    buffers = [
        buffer("x", (rows, depth), element=element),
        buffer(weight, (columns, depth), "parameter", element),
        buffer(bias, (columns,), "parameter", element),
    ]
    operands = value(bias), value("x"), value("turned")
    turned = node("turned", "permute.default", value(weight), [1, 0], shape=(depth, columns), element=element)
    return buffers, [turned, node("product", "addmm.default", *operands, shape=(rows, columns), element=element)]


def linear_relu(rows: int, columns: int, depth: int, element: str = F32) -> ModuleTask:
    """`element`: or `tf32`."""
    held, at = (F32 if element == "tf32" else element), (rows, columns)
    buffers, nodes = _linear(rows, columns, depth, held)
    return module(
        "linear-relu",
        {"rows": rows, "columns": columns, "depth": depth},
        [*buffers, buffer("out", at, "output", held)],
        [*nodes, node("made", "relu.default", value("product"), shape=at, element=held)],
        {"out": "made"},
        flops=2 * rows * columns * depth,
        **({"arithmetic": Arithmetic.TF32} if element == "tf32" else {}),
    )


def linear_norm(rows: int, columns: int, depth: int, element: str = F32) -> ModuleTask:
    at = (rows, columns)
    buffers, nodes = _linear(rows, columns, depth, element, "linear_")
    return module(
        "linear-norm-relu",
        {"rows": rows, "columns": columns, "depth": depth},
        [
            *buffers,
            buffer("norm_weight", (columns,), "parameter", element),
            buffer("norm_bias", (columns,), "parameter", element),
            buffer("out", at, "output", element),
        ],
        [
            *nodes,
            _norm("product", "norm_weight", "norm_bias", at, element),
            node("normed", "getitem", value("norm"), 0, shape=at, element=element),
            node("made", "relu.default", value("normed"), shape=at, element=element),
        ],
        {"out": "made"},
        flops=2 * rows * columns * depth,
    )


def row_mean(rows: int, columns: int) -> ModuleTask:
    return module(
        "row-mean",
        {"rows": rows, "columns": columns},
        [buffer("x", (rows, columns)), buffer("out", (rows,), "output")],
        [node("made", "mean.dim", value("x"), [1], shape=(rows,))],
        {"out": "made"},
    )


def max_pool(planes: int, height: int, width: int, element: str = F32) -> ModuleTask:
    small = _pooled(planes, height, width)
    operands = value("x"), [3, 3], [2, 2], [1, 1]
    return module(
        "max-pool",
        {"planes": planes, "height": height, "width": width},
        [buffer("x", (1, planes, height, width), element=element), buffer("out", small, "output", element)],
        [
            node("pooled", "max_pool2d_with_indices.default", *operands, shape=[small, small], element=element),
            node("made", "getitem", value("pooled"), 0, shape=small, element=element),
        ],
        {"out": "made"},
    )


def average_pool(planes: int, height: int, width: int) -> ModuleTask:
    small = _pooled(planes, height, width)
    return module(
        "average-pool",
        {"planes": planes, "height": height, "width": width},
        [buffer("x", (1, planes, height, width)), buffer("out", small, "output")],
        [node("made", "avg_pool2d.default", value("x"), [3, 3], [2, 2], [1, 1], shape=small)],
        {"out": "made"},
    )


def _pooled(planes: int, height: int, width: int) -> Shape:
    return 1, planes, (height - 1) // 2 + 1, (width - 1) // 2 + 1


def row_scan(rows: int, columns: int, element: str = F32) -> ModuleTask:
    at = (rows, columns)
    return module(
        "cumsum",
        {"rows": rows, "columns": columns},
        [buffer("x", at, element=element), buffer("out", at, "output", element)],
        [node("made", "cumsum.default", value("x"), 1, shape=at, element=element)],
        {"out": "made"},
    )


def mse_loss(count: int, element: str = F32) -> ModuleTask:
    at = (count,)
    return module(
        "mse-loss",
        {"count": count},
        [buffer("x", at, element=element), buffer("target", at, element=element), buffer("out", (), "output", element)],
        [
            node("away", "sub.Tensor", value("x"), value("target"), shape=at, element=element),
            node("square", "pow.Tensor_Scalar", value("away"), 2, shape=at, element=element),
            node("made", "mean.default", value("square"), shape=(), element=element),
        ],
        {"out": "made"},
    )


def count_positive(count: int) -> ModuleTask:
    at = (count,)
    return module(
        "count-positive",
        {"count": count},
        [buffer("x", at), buffer("out", (), "output", "i64")],
        [
            node("larger", "gt.Scalar", value("x"), 0.0, shape=at, element="bool"),
            node("made", "sum.default", value("larger"), shape=(), element="i64"),
        ],
        {"out": "made"},
    )


def batch_norm(batch: int, channels: int, inner: int) -> ModuleTask:
    at, each = (batch, channels, inner), (channels,)
    operands = [value(name) for name in ("x", "weight", "bias", "running_mean", "running_var")]
    return module(
        "batch-norm",
        {"batch": batch, "channels": channels, "inner": inner},
        [
            buffer("x", at),
            buffer("weight", each, "parameter"),
            buffer("bias", each, "parameter"),
            buffer("running_mean", each, "state"),
            buffer("running_var", each, "state"),
            buffer("batches", (), "state", "i64"),
            buffer("out", at, "output"),
        ],
        [
            node("count", "add.Tensor", value("batches"), 1, shape=(), element="i64"),
            node(
                "norm",
                "_native_batch_norm_legit_functional.default",
                *operands,
                True,
                0.1,
                1e-5,
                shape=[at, each, each, each, each],
            ),
            *(
                node(name, "getitem", value("norm"), index, shape=at if index == 0 else each)
                for name, index in (("made", 0), ("mean", 3), ("variance", 4))
            ),
        ],
        {"out": "made", "running_mean": "mean", "running_var": "variance", "batches": "count"},
        training=True,
    )


def cross_entropy(rows: int, classes: int) -> ModuleTask:
    at = (rows, classes)
    return module(
        "cross-entropy",
        {"rows": rows, "classes": classes},
        [buffer("x", at), buffer("target", (rows,), element="i64"), buffer("out", (), "output")],
        [
            node("logs", "_log_softmax.default", value("x"), 1, False, shape=at),
            node("loss", "nll_loss_forward.default", value("logs"), value("target"), None, 1, -100, shape=[(), ()]),
            node("made", "getitem", value("loss"), 0, shape=()),
        ],
        {"out": "made"},
    )


def masked(*shape: int) -> ModuleTask:
    return module(
        "masked",
        {"count": math.prod(shape)},
        [
            buffer("x", shape),
            buffer("drop", shape, element="bool"),
            buffer("above", shape, "output", "bool"),
            buffer("kept", shape, "output"),
        ],
        [
            node("larger", "gt.Scalar", value("x"), 0.0, shape=shape, element="bool"),
            node("filled", "masked_fill.Scalar", value("x"), value("drop"), 0.0, shape=shape),
        ],
        {"above": "larger", "kept": "filled"},
    )


def square_sum(rows: int, columns: int) -> ModuleTask:
    at = (rows, columns)
    return module(
        "square-sum",
        {"rows": rows, "columns": columns},
        [buffer("x", at), buffer("out", (columns,), "output", "f64")],
        [
            node("wide", "_to_copy.default", value("x"), shape=at, element="f64", dtype={"dtype": "f64"}),
            node("square", "mul.Tensor", value("wide"), value("wide"), shape=at, element="f64"),
            node("made", "sum.dim_IntList", value("square"), [0], shape=(columns,), element="f64"),
        ],
        {"out": "made"},
    )


def argmax(rows: int, columns: int) -> ModuleTask:
    return module(
        "argmax",
        {"rows": rows, "columns": columns},
        [buffer("x", (rows, columns)), buffer("out", (rows,), "output", "i64")],
        [node("made", "argmax.default", value("x"), 1, shape=(rows,), element="i64")],
        {"out": "made"},
    )
