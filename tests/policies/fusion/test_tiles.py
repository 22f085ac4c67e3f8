"""Products by our own kernels: every tile, uneven sizes, convolutions and transposed ones in phases."""

import itertools
from typing import Any

import numpy as np
import pytest

from cudal2_agent.contract.plan.chip import REFERENCE_CHIPS
from cudal2_agent.contract.records.module_task import ModuleTask
from cudal2_agent.contract.records.task import Arch
from cudal2_agent.policies.fusion.fused_source import written
from cudal2_agent.policies.fusion.grouping import grouped
from cudal2_agent.policies.fusion.product_kernels.tiles import TILES, SumTile
from cudal2_agent.policies.fusion.space import choices
from tests.policies.fusion.emulated import Array, emulated
from tests.policies.fusion.graphs import in_half, node, task
from tests.sandbox.emulator.compiled import PtxCompiler


def product(m: int, n: int, k: int, *, turned: bool = False) -> ModuleTask:
    nodes = [node("turned", "aten.permute.default", "b", [1, 0], results=[(k, n)])] if turned else []
    right = "turned" if turned else "b"
    nodes.append(node("product", "aten.mm.default", "a", right, results=[(m, n)]))
    return task({"a": (m, k), "b": (n, k) if turned else (k, n)}, nodes, "product")


def inputs_of(module: ModuleTask) -> dict[str, Array]:
    random = np.random.default_rng(3)
    return {each.name: random.normal(size=each.shape).astype(np.float32) for each in module.buffers if each.name != "out"}


@pytest.mark.parametrize("tile", TILES, ids=SumTile.text)
@pytest.mark.parametrize("turned", [False, True])
def test_a_product_of_uneven_sizes(tile: SumTile, turned: bool, compiler: PtxCompiler) -> None:
    module = product(tile.m + 3, tile.n + 5, 2 * tile.k + 3, turned=turned)
    candidate = written(module, grouped(module), {"k0": tile})
    inputs = inputs_of(module)
    right = inputs["b"].T if turned else inputs["b"]
    out = emulated(candidate, module, inputs, compiler)["out"]
    np.testing.assert_allclose(out, inputs["a"].astype(np.float64) @ right, atol=2e-5)


def convolved(x: Array, w: Array, stride: int, pad: int, dilation: int, out: tuple[int, ...], *, transposed: bool) -> Array:
    """By its definition, one tap and one place at a time."""
    result = np.zeros(out)
    for image, place in itertools.product(range(out[0]), itertools.product(*map(range, out[2:]))):
        for tap in itertools.product(*map(range, w.shape[2:])):
            if transposed:
                away = [p + pad - t * dilation for p, t in zip(place, tap, strict=True)]
                if any(each % stride for each in away):
                    continue
                source = [each // stride for each in away]
            else:
                source = [p * stride - pad + t * dilation for p, t in zip(place, tap, strict=True)]
            if all(0 <= each < size for each, size in zip(source, x.shape[2:], strict=True)):
                taken = w[(slice(None), slice(None), *tap)].astype(np.float64)
                row = x[(image, slice(None), *source)]
                result[(image, slice(None), *place)] += row @ taken if transposed else taken @ row
    return result


@pytest.mark.parametrize(
    ("transposed", "stride", "pad", "dilation", "size", "made"),
    [
        (False, 1, 1, 1, (6, 5), (6, 5)),
        (False, 2, 0, 2, (9, 8), (3, 2)),
        (True, 1, 1, 2, (4, 5), (6, 7)),
        (True, 2, 1, 1, (4, 3), (7, 5)),
        (True, 3, 0, 2, (3, 2), (11, 8)),
    ],
)
def test_a_convolution(
    transposed: bool, stride: int, pad: int, dilation: int, size: tuple[int, ...], made: tuple[int, ...], compiler: PtxCompiler
) -> None:
    shape = (2, 5, *made)
    weight = (3, 5, 3, 3) if transposed else (5, 3, 3, 3)
    args: list[Any] = ["x", "w", None, [stride] * 2, [pad] * 2, [dilation] * 2, transposed, [0, 0], 1]
    module = task({"x": (2, 3, *size), "w": weight}, [node("conv", "aten.convolution.default", *args, results=[shape])], "conv")
    groups = grouped(module)
    best = {name: each[0] for name, each in choices(groups, REFERENCE_CHIPS[Arch.SM_90A]).items()}
    inputs = inputs_of(module)
    out = emulated(written(module, groups, best), module, inputs, compiler)["out"]
    wanted = convolved(inputs["x"], inputs["w"], stride, pad, dilation, shape, transposed=transposed)
    np.testing.assert_allclose(out, wanted, atol=2e-5)


def test_what_follows_a_product_is_computed_from_its_sums(compiler: PtxCompiler) -> None:
    """Bias, ReLU and a residual in another order of dimensions: one kernel, which stores no product."""
    m, n, k = 21, 36, 19
    nodes = [
        node("turned", "aten.permute.default", "w", [1, 0], results=[(k, n)]),
        node("product", "aten.addmm.default", "bias", "x", "turned", results=[(m, n)]),
        node("positive", "aten.relu.default", "product", results=[(m, n)]),
        node("other", "aten.permute.default", "residual", [1, 0], results=[(m, n)]),
        node("sum", "aten.add.Tensor", "positive", "other", results=[(m, n)]),
    ]
    module = task({"x": (m, k), "w": (n, k), "bias": (n,), "residual": (n, m)}, nodes, "sum")
    groups = grouped(module)
    tile = SumTile(m=32, n=64, k=16, tm=4, tn=4)
    axes = choices(groups, REFERENCE_CHIPS[Arch.SM_90A])
    candidate = written(module, groups, {name: each[0] for name, each in axes.items()} | {groups.products[0].name: tile})
    assert (len(candidate.plan.launches), candidate.plan.scratch) == (1, ())
    inputs = inputs_of(module)
    out = emulated(candidate, module, inputs, compiler)["out"]
    wanted = np.maximum(inputs["x"].astype(np.float64) @ inputs["w"].T + inputs["bias"], 0) + inputs["residual"].T
    np.testing.assert_allclose(out, wanted, atol=2e-5)


def test_a_product_that_another_kernel_reads_elsewhere_is_stored(compiler: PtxCompiler) -> None:
    """The reader's elements are those of the product turned over."""
    nodes = [
        node("product", "aten.mm.default", "a", "b", results=[(12, 12)]),
        node("turned", "aten.permute.default", "product", [1, 0], results=[(12, 12)]),
        node("sum", "aten.add.Tensor", "product", "turned", results=[(12, 12)]),
    ]
    module = task({"a": (12, 8), "b": (8, 12)}, nodes, "sum")
    groups = grouped(module)
    tile = SumTile(m=32, n=64, k=16, tm=4, tn=4)
    axes = choices(groups, REFERENCE_CHIPS[Arch.SM_90A])
    candidate = written(module, groups, {name: each[0] for name, each in axes.items()} | {groups.products[0].name: tile})
    assert len(candidate.plan.launches) == 2
    inputs = inputs_of(module)
    made = inputs["a"].astype(np.float64) @ inputs["b"]
    np.testing.assert_allclose(emulated(candidate, module, inputs, compiler)["out"], made + made.T, atol=2e-5)


@pytest.mark.parametrize("columns", [8, 6])
def test_a_product_is_stored_under_another_shape(columns: int, compiler: PtxCompiler) -> None:
    """As einsum leaves it: dimensions are parted behind the product."""
    nodes = [
        node("product", "aten.mm.default", "a", "b", results=[(15, columns)]),
        node("parted", "aten.view.default", "product", [3, 5, columns], results=[(3, 5, columns)]),
    ]
    module = task({"a": (15, 7), "b": (7, columns)}, nodes, "parted")
    groups = grouped(module)
    axes = choices(groups, REFERENCE_CHIPS[Arch.SM_90A])
    tile = SumTile(m=32, n=64, k=16, tm=4, tn=4)
    candidate = written(module, groups, {name: each[0] for name, each in axes.items()} | {groups.products[0].name: tile})
    assert len(candidate.plan.launches) == 1
    inputs = inputs_of(module)
    out = emulated(candidate, module, inputs, compiler)["out"].reshape(15, columns)
    np.testing.assert_allclose(out, inputs["a"].astype(np.float64) @ inputs["b"], atol=2e-5)


@pytest.mark.parametrize(("kept", "diagonal"), [("tril", 0), ("triu", 0), ("tril", -7), ("triu", 5), ("triu", -40)])
def test_a_tile_of_zeros_of_a_triangle_adds_nothing_up(kept: str, diagonal: int, compiler: PtxCompiler) -> None:
    m, n, k = 70, 133, 9
    nodes = [
        node("product", "aten.mm.default", "a", "b", results=[(m, n)]),
        node("part", f"aten.{kept}.default", "product", diagonal, results=[(m, n)]),
    ]
    module = task({"a": (m, k), "b": (k, n)}, nodes, "part")
    groups = grouped(module)
    tile = SumTile(m=32, n=64, k=16, tm=4, tn=4)
    axes = choices(groups, REFERENCE_CHIPS[Arch.SM_90A])
    candidate = written(module, groups, {name: each[0] for name, each in axes.items()} | {groups.products[0].name: tile})
    assert len(candidate.plan.launches) == 1
    assert "< 0 ? 0u : 1u" in candidate.source
    inputs = inputs_of(module)
    out = emulated(candidate, module, inputs, compiler)["out"]
    wanted = getattr(np, kept)(inputs["a"].astype(np.float64) @ inputs["b"], diagonal)
    np.testing.assert_allclose(out, wanted, atol=2e-5)


@pytest.mark.parametrize(("n", "split"), [(37, 2), (64, 3), (64, 8)])
@pytest.mark.parametrize("half", [False, True])
def test_parts_of_a_sum_are_added_by_a_second_launch(n: int, split: int, half: bool, compiler: PtxCompiler) -> None:
    """With what follows the product; the last parts may have no terms."""
    m, k = 33, 140
    nodes = [
        node("product", "aten.addmm.default", "bias", "a", "b", results=[(m, n)]),
        node("positive", "aten.relu.default", "product", results=[(m, n)]),
    ]
    module = task({"a": (m, k), "b": (k, n), "bias": (n,)}, nodes, "positive")
    tile = SumTile(m=32, n=64, k=16, tm=4, tn=4, split=split)
    if half:
        module, tile = in_half(module), SumTile(kind="mma", m=32, n=128, k=32, tm=32, tn=16, split=split)
    assert SumTile.parse(tile.text()) == tile
    groups = grouped(module)
    axes = choices(groups, REFERENCE_CHIPS[Arch.SM_90A])
    candidate = written(module, groups, {name: each[0] for name, each in axes.items()} | {groups.products[0].name: tile})
    assert len(candidate.plan.launches) == 2
    inputs = {name: each.astype(np.float16 if half else np.float32) for name, each in inputs_of(module).items()}
    wide = {name: each.astype(np.float64) for name, each in inputs.items()}
    out = emulated(candidate, module, inputs, compiler)["out"]
    tolerance = 3e-2 if half else 5e-5
    np.testing.assert_allclose(
        out, np.maximum(wide["a"] @ wide["b"] + wide["bias"], 0), rtol=2e-3 if half else 0, atol=tolerance
    )


def test_few_tiles_of_long_sums_are_split_first() -> None:
    chip = REFERENCE_CHIPS[Arch.SM_90A]
    best = choices(grouped(product(256, 256, 524288)), chip)["k0"][0]
    assert isinstance(best, SumTile)
    assert best.split * (256 // best.m) * (256 // best.n) >= chip.sms
    assert all(each.split == 1 for each in choices(grouped(product(8192, 8192, 1024)), chip)["k0"])
