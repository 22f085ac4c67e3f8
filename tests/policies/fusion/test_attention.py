"""Attention, pieces of a tensor and elements at loaded places, as transformers have them."""

import numpy as np
import pytest

from cudal2_agent.contract.records.module_graph import Graph
from cudal2_agent.contract.records.module_task import ModuleTask
from cudal2_agent.contract.records.named_buffer import Buffer, BufferElement, Role
from cudal2_agent.policies.fusion.grouping import ProductStep, grouped
from tests.policies.fusion.emulated import Array, emulated, inputs_of
from tests.policies.fusion.graphs import node, task
from tests.policies.fusion.test_fusion import first, softmax_of
from tests.sandbox.emulator.compiled import PtxCompiler

HEADS = (2, 3, 9, 8)


def attended(scores: Array, v: Array) -> Array:
    result: Array = softmax_of(scores, -1) @ v
    return result


@pytest.mark.parametrize("causal", [False, True])
def test_attention_is_two_products_and_a_kernel_between_them(causal: bool, compiler: PtxCompiler) -> None:
    args = ["q", "k", "v", None, 0.0, causal]
    nodes = [node("heads", "aten.scaled_dot_product_attention.default", *args, results=[HEADS])]
    module = task(dict.fromkeys("qkv", HEADS), nodes, "heads")
    steps = grouped(module).steps
    assert sum(isinstance(step, ProductStep) for step in steps) == 2
    assert len(steps) <= 4  # the products, the softmax, and the last view
    inputs = inputs_of(module)
    q, k, v = (inputs[each].astype(np.float64) for each in "qkv")
    scores = q @ k.swapaxes(-1, -2) / np.sqrt(8)
    if causal:
        scores = np.where(np.tril(np.ones((9, 9))) > 0, scores, -np.inf)
    np.testing.assert_allclose(emulated(first(module), module, inputs, compiler)["out"], attended(scores, v), atol=2e-6)


def test_a_row_without_keys_is_zero(compiler: PtxCompiler) -> None:
    nodes = [node("heads", "aten.scaled_dot_product_attention.default", "q", "k", "v", "mask", results=[HEADS])]
    module = task({**dict.fromkeys("qkv", HEADS), "mask": (9, 9)}, nodes, "heads")
    inputs = inputs_of(module)
    inputs["mask"][4] = -np.inf
    out = emulated(first(module), module, inputs, compiler)["out"]
    assert (out[:, :, 4] == 0).all()
    assert np.isfinite(out).all()


def test_pieces_of_a_tensor_are_read_where_they_are(compiler: PtxCompiler) -> None:
    piece = (4, 5)
    nodes = [
        node("parts", "aten.split_with_sizes.default", "x", [5, 5], 1, results=[piece, piece]),
        node("left", "getitem", "parts", 0, results=[piece]),
        node("right", "getitem", "parts", 1, results=[piece]),
        node("product", "aten.mul.Tensor", "left", "right", results=[piece]),
        node("shrunk", "aten.selu.default", "product", results=[piece]),
    ]
    module = task({"x": (4, 10)}, nodes, "shrunk")
    inputs = inputs_of(module)
    product = inputs["x"][:, :5].astype(np.float64) * inputs["x"][:, 5:]
    wanted = 1.0507009873554805 * np.where(product > 0, product, 1.6732632423543772 * np.expm1(product))
    np.testing.assert_allclose(emulated(first(module), module, inputs, compiler)["out"], wanted, atol=1e-6)


def test_elements_at_places_of_a_tensor_count_from_the_end_below_zero(compiler: PtxCompiler) -> None:
    shape = (4, 3)
    nodes = [node("rows", "aten.index.Tensor", "table", ["places"], results=[shape])]
    buffers = (
        Buffer(name="table", shape=(6, 3), element=BufferElement.F32, role=Role.INPUT),
        Buffer(name="places", shape=(4,), element=BufferElement.I64, role=Role.INPUT),
        Buffer(name="out", shape=shape, element=BufferElement.F32, role=Role.OUTPUT),
    )
    module = ModuleTask(name="small", problem="", buffers=buffers, graph=Graph(nodes=tuple(nodes), outputs={"out": "rows"}))
    inputs = {"table": np.arange(18, dtype=np.float32).reshape(6, 3), "places": np.array([5, -1, 0, -6])}
    out = emulated(first(module), module, inputs, compiler)["out"]
    assert np.array_equal(out, inputs["table"][inputs["places"]])


def test_a_tensor_is_rolled(compiler: PtxCompiler) -> None:
    module = task({"x": (3, 5, 8)}, [node("turned", "aten.roll.default", "x", [-2, 1], [1, 2], results=[(3, 5, 8)])], "turned")
    inputs = inputs_of(module)
    assert np.array_equal(emulated(first(module), module, inputs, compiler)["out"], np.roll(inputs["x"], (-2, 1), (1, 2)))


def test_a_mask_is_turned_over(compiler: PtxCompiler) -> None:
    shape = (3, 8)
    nodes = [
        node("positive", "aten.gt.Scalar", "x", 0, results=[shape], element=BufferElement.BOOL),
        node("others", "aten.bitwise_not.default", "positive", results=[shape], element=BufferElement.BOOL),
        node("kept", "aten.masked_fill.Scalar", "x", "others", 7, results=[shape]),
    ]
    module = task({"x": shape}, nodes, "kept")
    inputs = inputs_of(module)
    out = emulated(first(module), module, inputs, compiler)["out"]
    assert np.array_equal(out, np.where(inputs["x"] > 0, inputs["x"], 7))
