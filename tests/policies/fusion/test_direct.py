"""Products with a vector, and depthwise convolutions, are no products: they are computed with what is around them."""

import pytest

pytest.importorskip("cudal2_agent.sandbox.emulator._core", reason="the emulator's core is not built here")
pytest.importorskip("torch", reason="modules are proved with PyTorch")

from tests.policies.fusion.graphs import node, task
from tests.policies.fusion.proving import candidate_of, failed
from tests.sandbox.emulator.proving import Build


@pytest.mark.parametrize(("rows", "columns", "turned"), [(7, 1, False), (1, 6, False), (1, 9, True)])
def test_a_product_with_a_vector_is_a_reduction(rows: int, columns: int, turned: bool, build: Build) -> None:
    k, shape = 37, (rows, columns)
    nodes = [node("right", "aten.permute.default", "b", [1, 0], results=[(k, columns)])] if turned else []
    nodes += [
        node("product", "aten.mm.default", "a", "right" if turned else "b", results=[shape]),
        node("positive", "aten.relu.default", "product", results=[shape]),
    ]
    module = task({"a": (rows, k), "b": (columns, k) if turned else (k, columns)}, nodes, "positive")
    candidate, groups = candidate_of(module)
    assert (len(groups.products), len(candidate.plan.launches)) == (0, 1)
    assert failed(candidate, module, build) == []


@pytest.mark.parametrize(
    ("stride", "pad", "dilation", "each", "made"), [(1, 1, 1, 1, (6, 8)), (2, 0, 1, 2, (2, 3)), (1, 2, 2, 1, (6, 8))]
)
def test_a_depthwise_convolution_and_what_is_around_it_are_one_kernel(
    stride: int, pad: int, dilation: int, each: int, made: tuple[int, int], build: Build
) -> None:
    channels, size = 3, (6, 8)
    shape = (2, channels * each, *made)
    args = ["positive", "w", "bias", [stride] * 2, [pad] * 2, [dilation] * 2, False, [0, 0], channels]
    nodes = [
        node("positive", "aten.relu.default", "x", results=[(2, channels, *size)]),
        node("conv", "aten.convolution.default", *args, results=[shape]),
        node("bounded", "aten.tanh.default", "conv", results=[shape]),
    ]
    inputs = {"x": (2, channels, *size), "w": (channels * each, 1, 3, 3), "bias": (channels * each,)}
    module = task(inputs, nodes, "bounded")
    candidate, groups = candidate_of(module)
    assert (len(groups.products), len(candidate.plan.launches)) == (0, 1)
    assert failed(candidate, module, build) == []


def test_neighbours_of_one_line_read_a_shared_element_once() -> None:
    """Three lines of a window, of which two neighbours read four elements: two pairs."""
    shape = (2, 3, 6, 10)
    args = ["x", "w", None, [1, 1], [0, 0], [1, 1], False, [0, 0], 3]
    module = task({"x": (2, 3, 8, 12), "w": (3, 1, 3, 3)}, [node("c", "aten.convolution.default", *args, results=[shape])], "c")
    candidate, _ = candidate_of(module)
    assert candidate.source.count("load_pack<2>(x + ") == 3 * 2
