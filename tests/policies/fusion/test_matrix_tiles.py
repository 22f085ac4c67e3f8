"""Half-precision products by matrix instructions: every tile, operands along either side, uneven sizes, convolutions."""

from typing import Any

import numpy as np
import pytest

pytest.importorskip("cudal2_agent.sandbox.emulator._core", reason="the emulator's core is not built here")
pytest.importorskip("torch", reason="modules are proved with PyTorch")

from cudal2_agent.contract.plan.chip import REFERENCE_CHIPS
from cudal2_agent.contract.records.module_task import Arithmetic, ModuleTask
from cudal2_agent.policies.fusion.fused_source import written
from cudal2_agent.policies.fusion.grouping import grouped
from cudal2_agent.policies.fusion.product_kernels.tiles import MATRIX_TILES, WARPGROUP_TILES, SumTile
from cudal2_agent.policies.fusion.space import choices
from tests.policies.fusion.convolutions import GEOMETRIES, Geometry
from tests.policies.fusion.emulated import Array, emulated, inputs_of
from tests.policies.fusion.graphs import in_half, linear_relu_residual, node, task
from tests.policies.fusion.proving import candidate_of, failed
from tests.sandbox.emulator.compiled import PtxCompiler
from tests.sandbox.emulator.proving import Build

SMALL = SumTile(kind="mma", m=32, n=128, k=32, tm=32, tn=16)


def product(m: int, n: int, k: int, *, turned: tuple[bool, bool]) -> ModuleTask:
    """`turned`: operands that are read along their other side."""
    nodes = [
        node(f"{name}_", "aten.permute.default", name, [1, 0], results=[shape])
        for name, shape, other in (("a", (m, k), turned[0]), ("b", (k, n), turned[1]))
        if other
    ]
    left, right = (f"{name}_" if other else name for name, other in zip("ab", turned, strict=True))
    nodes.append(node("product", "aten.mm.default", left, right, results=[(m, n)]))
    return in_half(task({"a": (k, m) if turned[0] else (m, k), "b": (n, k) if turned[1] else (k, n)}, nodes, "product"))


def right_of(inputs: dict[str, Array], turned: tuple[bool, bool]) -> Array:
    a, b = (inputs[name].astype(np.float64) for name in "ab")
    result: Array = (a.T if turned[0] else a) @ (b.T if turned[1] else b)
    return result


@pytest.mark.parametrize("tile", MATRIX_TILES, ids=SumTile.text)
@pytest.mark.parametrize("turned", [(False, True), (True, False)], ids=["along-k", "along-rows"])
def test_a_product_whose_rows_are_copied_by_16_bytes(tile: SumTile, turned: tuple[bool, bool], compiler: PtxCompiler) -> None:
    module = product(tile.m + 8, tile.n + 16, 2 * tile.k + 8, turned=turned)
    inputs = inputs_of(module)
    out = emulated(written(module, grouped(module), {"k0": tile}), module, inputs, compiler)["out"]
    np.testing.assert_allclose(out, right_of(inputs, turned), rtol=2e-3, atol=2e-2)


@pytest.mark.parametrize("turned", [(False, True), (True, False)], ids=["along-k", "along-rows"])
@pytest.mark.parametrize("sizes", [(35, 131, 67), (3, 5, 2)])
def test_a_product_of_uneven_sizes(sizes: tuple[int, int, int], turned: tuple[bool, bool], compiler: PtxCompiler) -> None:
    module = product(*sizes, turned=turned)
    inputs = inputs_of(module)
    out = emulated(written(module, grouped(module), {"k0": SMALL}), module, inputs, compiler)["out"]
    np.testing.assert_allclose(out, right_of(inputs, turned), rtol=2e-3, atol=2e-2)


@pytest.mark.parametrize("geometry", GEOMETRIES)
def test_a_convolution(geometry: Geometry, compiler: PtxCompiler) -> None:
    module = in_half(geometry.task())
    inputs = inputs_of(module)
    out = emulated(written(module, grouped(module), {"k0": SMALL}), module, inputs, compiler)["out"]
    np.testing.assert_allclose(out, geometry.convolved(inputs), rtol=2e-3, atol=2e-2)


@pytest.mark.parametrize("arithmetic", [Arithmetic.F16, Arithmetic.BF16])
def test_a_linear_layer_and_what_follows_it_are_one_proved_kernel(arithmetic: Arithmetic, build: Build) -> None:
    module = in_half(linear_relu_residual(21, 40, 24), arithmetic)
    name = grouped(module).products[0].name
    candidate, _ = candidate_of(module, **{name: SMALL})
    assert (len(candidate.plan.launches), candidate.plan.scratch) == (1, ())
    assert failed(candidate, module, build) == []


def linear(m: int, n: int, k: int, *, turned: tuple[bool, bool], batch: int = 1) -> ModuleTask:
    """A product, a bias and a residual; of several matrices where there is a batch."""
    outer = (batch,) if batch > 1 else ()
    order = [0, 2, 1] if outer else [1, 0]
    shape = (*outer, m, n)
    nodes = [
        node(f"{name}_", "aten.permute.default", name, order, results=[(*outer, *sizes)])
        for name, sizes, other in (("a", (m, k), turned[0]), ("b", (k, n), turned[1]))
        if other
    ]
    left, right = (f"{name}_" if other else name for name, other in zip("ab", turned, strict=True))
    nodes += [
        node("product", f"aten.{'bmm' if outer else 'mm'}.default", left, right, results=[shape]),
        node("biased", "aten.add.Tensor", "product", "bias", results=[shape]),
        node("positive", "aten.relu.default", "biased", results=[shape]),
        node("sum", "aten.add.Tensor", "positive", "residual", results=[shape]),
    ]
    inputs = {"a": (k, m) if turned[0] else (m, k), "b": (n, k) if turned[1] else (k, n)}
    inputs = {name: (*outer, *sizes) for name, sizes in inputs.items()}
    return in_half(task({**inputs, "bias": (n,), "residual": shape}, nodes, "sum"))


@pytest.mark.parametrize(
    ("tile", "turned", "batch", "sizes"),
    [
        (WARPGROUP_TILES[1], (False, True), 1, (136, 136, 328)),  # more blocks of terms than stages
        (WARPGROUP_TILES[3], (True, False), 1, (144, 72, 72)),
        (WARPGROUP_TILES[0], (False, False), 2, (24, 264, 64)),
        (WARPGROUP_TILES[2], (False, True), 2, (40, 200, 40)),
    ],
    ids=["along-k", "along-rows", "matrices", "matrices-with-an-uneven-last-block"],
)
def test_a_product_by_warpgroups_and_what_follows_it_are_one_proved_kernel(
    tile: SumTile, turned: tuple[bool, bool], batch: int, sizes: tuple[int, int, int], build: Build
) -> None:
    module = linear(*sizes, turned=turned, batch=batch)
    candidate, _ = candidate_of(module, **{grouped(module).products[0].name: tile})
    assert len(candidate.plan.launches) == 1
    assert "multiply_warpgroups<" in candidate.source
    assert failed(candidate, module, build) == []


@pytest.mark.parametrize(("k", "turned"), [(36, (False, True)), (40, (False, False))])
def test_operands_that_no_box_reads_have_no_tiles_of_warpgroups(k: int, turned: tuple[bool, bool]) -> None:
    """Lines of 72 bytes; and matrices behind whose last terms those of the next lie."""
    module = linear(2048, 2048, k, turned=turned, batch=2)
    groups = grouped(module)
    tiles = choices(groups, REFERENCE_CHIPS[module.arch])[groups.products[0].name]
    assert {each.kind for each in tiles if isinstance(each, SumTile)} == {"mma"}


def test_a_convolution_of_single_places_multiplies_the_matrix_of_each_image(build: Build) -> None:
    images, inner, outer, size = 2, 64, 40, (8, 10)
    shape = (images, outer, *size)
    args: list[Any] = ["x", "w", "bias", [1, 1], [0, 0], [1, 1], False, [0, 0], 1]
    nodes = [
        node("conv", "aten.convolution.default", *args, results=[shape]),
        node("positive", "aten.relu.default", "conv", results=[shape]),
    ]
    inputs = {"x": (images, inner, *size), "w": (outer, inner, 1, 1), "bias": (outer,)}
    module = in_half(task(inputs, nodes, "positive"))
    candidate, _ = candidate_of(module, **{grouped(module).products[0].name: SMALL})
    assert len(candidate.plan.launches) == 1
    assert candidate.source.count("kWide = 8") == 2
    assert failed(candidate, module, build) == []
