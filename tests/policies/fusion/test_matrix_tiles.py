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
from tests.policies.fusion.emulated import Array, emulated
from tests.policies.fusion.graphs import in_half, node, task
from tests.policies.fusion.proving import candidate_of, failed
from tests.policies.fusion.test_tiles import convolved
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


def inputs_of(module: ModuleTask) -> dict[str, Array]:
    random = np.random.default_rng(3)
    return {each.name: random.normal(size=each.shape).astype(np.float16) for each in module.buffers if each.name != "out"}


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


@pytest.mark.parametrize(
    ("transposed", "stride", "pad", "dilation", "size", "made"),
    [
        (False, 1, 1, 1, (6, 5), (6, 5)),
        (False, 2, 0, 2, (9, 8), (3, 2)),
        (True, 2, 1, 1, (4, 3), (7, 5)),
        (True, 3, 0, 2, (3, 2), (11, 8)),
    ],
)
def test_a_convolution(
    transposed: bool, stride: int, pad: int, dilation: int, size: tuple[int, int], made: tuple[int, int], compiler: PtxCompiler
) -> None:
    shape = (2, 5, *made)
    args: list[Any] = ["x", "w", None, [stride] * 2, [pad] * 2, [dilation] * 2, transposed, [0, 0], 1]
    nodes = [node("conv", "aten.convolution.default", *args, results=[shape])]
    module = in_half(task({"x": (2, 3, *size), "w": (3, 5, 3, 3) if transposed else (5, 3, 3, 3)}, nodes, "conv"))
    inputs = inputs_of(module)
    out = emulated(written(module, grouped(module), {"k0": SMALL}), module, inputs, compiler)["out"]
    wide = {name: each.astype(np.float64) for name, each in inputs.items()}
    wanted = convolved(wide["x"], wide["w"], stride, pad, dilation, shape, transposed=transposed)
    np.testing.assert_allclose(out, wanted, rtol=2e-3, atol=2e-2)


@pytest.mark.parametrize("arithmetic", [Arithmetic.F16, Arithmetic.BF16])
def test_a_linear_layer_and_what_follows_it_are_one_proved_kernel(arithmetic: Arithmetic, build: Build) -> None:
    m, n, k = 21, 40, 24
    nodes = [
        node("turned", "aten.permute.default", "w", [1, 0], results=[(k, n)]),
        node("product", "aten.addmm.default", "bias", "x", "turned", results=[(m, n)]),
        node("positive", "aten.relu.default", "product", results=[(m, n)]),
        node("other", "aten.permute.default", "residual", [1, 0], results=[(m, n)]),
        node("sum", "aten.add.Tensor", "positive", "other", results=[(m, n)]),
    ]
    module = in_half(task({"x": (m, k), "w": (n, k), "bias": (n,), "residual": (n, m)}, nodes, "sum"), arithmetic)
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
