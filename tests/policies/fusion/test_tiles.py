"""Products by our own kernels: every tile, uneven sizes, convolutions and transposed ones in phases."""

import numpy as np
import pytest

from cudal2_agent.contract.plan.chip import REFERENCE_CHIPS
from cudal2_agent.contract.records.module_task import ModuleTask
from cudal2_agent.contract.records.task import Arch
from cudal2_agent.policies.fusion.fused_source import written
from cudal2_agent.policies.fusion.grouping import grouped
from cudal2_agent.policies.fusion.product_kernels.tiles import DOUBLE_TILES, TILES, SumTile
from cudal2_agent.policies.fusion.space import choices
from tests.policies.fusion.convolutions import GEOMETRIES, Geometry
from tests.policies.fusion.emulated import emulated, inputs_of
from tests.policies.fusion.graphs import in_half, linear_relu_residual, node, task
from tests.sandbox.emulator.compiled import PtxCompiler


def product(m: int, n: int, k: int, *, turned: bool = False) -> ModuleTask:
    nodes = [node("turned", "aten.permute.default", "b", [1, 0], results=[(k, n)])] if turned else []
    right = "turned" if turned else "b"
    nodes.append(node("product", "aten.mm.default", "a", right, results=[(m, n)]))
    return task({"a": (m, k), "b": (n, k) if turned else (k, n)}, nodes, "product")


@pytest.mark.parametrize("tile", TILES + DOUBLE_TILES, ids=SumTile.text)
@pytest.mark.parametrize("turned", [False, True])
def test_a_product_of_uneven_sizes(tile: SumTile, turned: bool, compiler: PtxCompiler) -> None:
    module = product(tile.m + 3, tile.n + 5, 2 * tile.k + 3, turned=turned)
    candidate = written(module, grouped(module), {"k0": tile})
    inputs = inputs_of(module)
    right = inputs["b"].T if turned else inputs["b"]
    out = emulated(candidate, module, inputs, compiler)["out"]
    np.testing.assert_allclose(out, inputs["a"].astype(np.float64) @ right, atol=2e-5)


@pytest.mark.parametrize("geometry", GEOMETRIES)
@pytest.mark.parametrize(
    "text",
    [
        *("tile 32x64x16 4x4", "tile 32x128x8 4x8 packed", "tile 16x128x8 4x4 s2 packed"),
        *("dmma 32x128x32 32x32", "dmma 64x64x32 32x32 s2 packed"),
    ],
)
def test_a_convolution(geometry: Geometry, text: str, compiler: PtxCompiler) -> None:
    module = geometry.task()
    tile = SumTile.parse(text)
    assert tile.text() == text
    inputs = inputs_of(module)
    out = emulated(written(module, grouped(module), {"k0": tile}), module, inputs, compiler)["out"]
    np.testing.assert_allclose(out, geometry.convolved(inputs), atol=4e-5)


def test_what_follows_a_product_is_computed_from_its_sums(compiler: PtxCompiler) -> None:
    """One kernel, which stores no product."""
    module = linear_relu_residual(21, 36, 19)
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
