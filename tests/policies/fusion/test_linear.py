"""What is linear in a product is summed before it is multiplied, and nothing else is."""

from typing import Any

import pytest

pytest.importorskip("cudal2_agent.sandbox.emulator._core", reason="the emulator's core is not built here")
pytest.importorskip("torch", reason="modules are proved with PyTorch")

from cudal2_agent.contract.records.module_task import ModuleTask
from cudal2_agent.policies.fusion.grouping import ProductStep
from tests.policies.fusion.graphs import node, task
from tests.policies.fusion.proving import candidate_of, failed
from tests.sandbox.emulator.proving import Build


def linear_mean(operation: str = "sum", factor: Any = 2, *, positive: bool = False) -> ModuleTask:
    """A linear layer, a scale, a vector taken away, and the sum or the mean of each row."""
    m, k, n = 5, 12, 18
    shape = (m, n)
    nodes = [
        node("turned", "aten.permute.default", "w", [1, 0], results=[(k, n)]),
        node("product", "aten.addmm.default", "bias", "x", "turned", results=[shape]),
        node("scaled", "aten.div.Tensor", "product", factor, results=[shape]),
        node("less", "aten.sub.Tensor", "scaled", "offset", results=[shape], alpha=0.5),
        *([node("positive", "aten.relu.default", "less", results=[shape])] if positive else []),
        node(
            "row",
            f"aten.{operation}.dim" + ("_IntList" if operation == "sum" else ""),
            "positive" if positive else "less",
            [1],
            True,
            results=[(m, 1)],
        ),
    ]
    return task({"x": (m, k), "w": (n, k), "bias": (n,), "offset": (n,)}, nodes, "row")


@pytest.mark.parametrize("operation", ["sum", "mean"])
def test_the_sum_of_a_linear_layer_s_features_needs_no_product(operation: str, build: Build) -> None:
    module = linear_mean(operation)
    candidate, groups = candidate_of(module, algebra=True)
    assert not groups.products
    assert failed(candidate, module, build) == []


def test_a_sum_behind_an_activation_keeps_the_product() -> None:
    _, groups = candidate_of(linear_mean(positive=True))
    assert [type(step) for step in groups.steps].count(ProductStep) == 1


def convolved_mean(
    *, transposed: bool, stride: int, pad: int, dilation: int, size: tuple[int, int], made: tuple[int, int], groups: int = 1
) -> ModuleTask:
    """A convolution with a bias, a batch norm, and the mean over all places."""
    images, inner, outer = 2, 4, 6
    shape = (images, outer, *made)
    weight = (inner, outer // groups, 3, 2) if transposed else (outer, inner // groups, 3, 2)
    geometry: list[Any] = [[stride] * 2, [pad] * 2, [dilation] * 2, transposed, [0, 0], groups]
    vectors = dict.fromkeys(("bias", "gamma", "beta", "running", "spread"), (outer,))
    nodes = [
        node("spread_squares", "aten.mul.Tensor", "spread", "spread", results=[(outer,)]),
        node("conv", "aten.convolution.default", "x", "w", "bias", *geometry, results=[shape]),
        node("twice", "aten.mul.Tensor", "conv", 2.0, results=[shape]),
        node(
            "norm",
            "aten._native_batch_norm_legit_no_training.default",
            "twice",
            "gamma",
            "beta",
            "running",
            "spread_squares",
            0.1,
            0.5,
            results=[shape, (0,), (0,)],
        ),
        node("first", "getitem", "norm", 0, results=[shape]),
        node("mean", "aten.mean.dim", "first", [2, 3], True, results=[(images, outer, 1, 1)]),
    ]
    return task({"x": (images, inner, *size), "w": weight, **vectors}, nodes, "mean")


@pytest.mark.parametrize(
    "geometry",
    [
        {"transposed": True, "stride": 1, "pad": 0, "dilation": 1, "size": (4, 5), "made": (6, 6)},
        {"transposed": True, "stride": 2, "pad": 1, "dilation": 1, "size": (4, 5), "made": (7, 8), "groups": 2},
        {"transposed": True, "stride": 2, "pad": 0, "dilation": 2, "size": (3, 4), "made": (9, 9)},
        {"transposed": False, "stride": 1, "pad": 1, "dilation": 1, "size": (5, 6), "made": (5, 7)},
        {"transposed": False, "stride": 2, "pad": 0, "dilation": 2, "size": (9, 8), "made": (3, 3), "groups": 2},
    ],
    ids=lambda each: "transposed" if each["transposed"] else "plain",
)
def test_the_mean_over_the_places_of_a_convolution_needs_no_convolution(geometry: dict[str, Any], build: Build) -> None:
    module = convolved_mean(**geometry)
    candidate, groups = candidate_of(module, algebra=True)
    assert not groups.products
    assert failed(candidate, module, build) == []


def test_products_are_kept_where_no_rewrite_was_asked_for() -> None:
    candidate, groups = candidate_of(linear_mean())
    assert groups.products
    assert (candidate.origin.schedule or {})["family"] == "fusion"
