"""Running sums: along rows and columns, of a reversed row, and longer than a CTA takes at once."""

import numpy as np
import pytest

from cudal2_agent.contract.plan.chip import REFERENCE_CHIPS
from cudal2_agent.contract.records.task import Arch
from cudal2_agent.policies.fusion.axes import Axes
from cudal2_agent.policies.fusion.fused_source import fused_products, written
from cudal2_agent.policies.fusion.grouping import ScanStep, grouped
from cudal2_agent.policies.fusion.product_kernels.tiles import TILES
from cudal2_agent.policies.fusion.programs import KernelProgram
from cudal2_agent.policies.fusion.space import choices
from tests.policies.fusion.emulated import emulated
from tests.policies.fusion.graphs import node, task
from tests.sandbox.emulator.compiled import PtxCompiler


@pytest.mark.parametrize(
    "text", ["rows v4 t64 i1 l1", "rows v1 t128 i1 l1", "rows v4 t32 i1 l1 p2", "rows v2 t64 i1 l1 p7", "columns v1 t64 i1 l1"]
)
def test_a_running_sum_from_the_end_is_one_kernel(text: str, compiler: PtxCompiler) -> None:
    shape = (3, 780)
    module = task(
        {"x": shape},
        [
            node("turned", "aten.flip.default", "x", [1], results=[shape]),
            node("sums", "aten.cumsum.default", "turned", 1, results=[shape]),
            node("back", "aten.flip.default", "sums", [1], results=[shape]),
        ],
        "back",
    )
    groups = grouped(module)
    x = np.random.default_rng(1).normal(size=shape).astype(np.float32)
    out = emulated(written(module, groups, {"k0": Axes.parse(text)}), module, {"x": x}, compiler)["out"]
    wanted = np.cumsum(x[:, ::-1].astype(np.float64), 1)[:, ::-1]
    np.testing.assert_allclose(out, wanted, atol=5e-6)  # sums up to 60, whose neighbours in f32 lie 4e-6 apart


@pytest.mark.parametrize("fill", [0, 3])
def test_what_lies_before_a_joined_value_is_not_read(fill: int, compiler: PtxCompiler) -> None:
    """A number before the sums: the kernel reads no sum at its place. Zeros before sums are part of the scan itself."""
    module = task(
        {"x": (2, 8)},
        [
            node("sums", "aten.cumsum.default", "x", 1, results=[(2, 8)]),
            node("first", "aten.full.default", [2, 1], fill, results=[(2, 1)]),
            node("joined", "aten.cat.default", ["first", "sums"], 1, results=[(2, 9)]),
        ],
        "joined",
    )
    x = np.arange(16, dtype=np.float32).reshape(2, 8)
    groups = grouped(module)
    assert len(groups.steps) == (2 if fill else 1)
    best = {name: each[0] for name, each in choices(groups, REFERENCE_CHIPS[Arch.SM_90A]).items()}
    out = emulated(written(module, groups, best), module, {"x": x}, compiler)["out"]
    assert np.array_equal(out, np.pad(np.cumsum(x, 1), ((0, 0), (1, 0)), constant_values=fill))


@pytest.mark.parametrize(("shape", "dim"), [((3, 1, 20), 2), ((3, 1, 20), 0), ((3, 1, 20), 1), ((1, 20), 1), ((1, 1), 0)])
def test_dimensions_of_one_element_are_scanned_past(shape: tuple[int, ...], dim: int, compiler: PtxCompiler) -> None:
    module = task({"x": shape}, [node("sums", "aten.cumsum.default", "x", dim, results=[shape])], "sums")
    x = np.random.default_rng(4).normal(size=shape).astype(np.float32)
    groups = grouped(module)
    best = {name: each[0] for name, each in choices(groups, REFERENCE_CHIPS[Arch.SM_90A]).items()}
    out = emulated(written(module, groups, best), module, {"x": x}, compiler)["out"]
    np.testing.assert_allclose(out, np.cumsum(x.astype(np.float64), dim), rtol=1e-5, atol=2e-6)


@pytest.mark.parametrize("dim", [0, 1])
def test_statistics_of_what_is_scanned_are_stored_before_it(dim: int, compiler: PtxCompiler) -> None:
    """Of rows along the scan, and across it: a scan's kernel reduces nothing."""
    shape = (6, 40)
    module = task(
        {"x": shape},
        [
            node("soft", "aten._softmax.default", "x", 1, False, results=[shape]),
            node("sums", "aten.cumsum.default", "soft", dim, results=[shape]),
        ],
        "sums",
    )
    x = np.random.default_rng(2).normal(size=shape).astype(np.float32)
    groups = grouped(module)
    assert [type(each) for each in groups.steps] == [KernelProgram, ScanStep]
    best = {name: each[0] for name, each in choices(groups, REFERENCE_CHIPS[Arch.SM_90A]).items()}
    out = emulated(written(module, groups, best), module, {"x": x}, compiler)["out"]
    powers = np.exp(x.astype(np.float64))
    np.testing.assert_allclose(out, np.cumsum(powers / powers.sum(1, keepdims=True), dim), rtol=2e-6)


def test_what_a_scan_reads_is_written_before_it(compiler: PtxCompiler) -> None:
    """A kernel that stores it is not joined with one of the same rows behind the scan."""
    shape = (6, 40)
    one = task(
        {"x": shape},
        [
            node("powers", "aten.exp.default", "x", results=[shape]),
            node("sums", "aten.cumsum.default", "powers", 0, results=[shape]),
            node("scaled", "aten.mul.Tensor", "sums", "powers", results=[shape]),
        ],
        "scaled",
    )
    outputs = {**one.graph.outputs, "powers_out": "powers"}
    added = one.buffers[-1].model_copy(update={"name": "powers_out"})
    graph = one.graph.model_copy(update={"outputs": outputs})
    module = one.model_copy(update={"buffers": (*one.buffers, added), "graph": graph})
    groups = grouped(module)
    assert [type(each) for each in groups.steps] == [KernelProgram, ScanStep, KernelProgram]
    x = np.random.default_rng(3).normal(size=shape).astype(np.float32)
    best = {name: each[0] for name, each in choices(groups, REFERENCE_CHIPS[Arch.SM_90A]).items()}
    powers = np.exp(x.astype(np.float64))
    out = emulated(written(module, groups, best), module, {"x": x}, compiler)["out"]
    np.testing.assert_allclose(out, np.cumsum(powers, 0) * powers, rtol=2e-6)


def test_a_product_behind_which_only_a_scan_reads_another_value_is_fused() -> None:
    """A scan elsewhere in the module keeps no product from what follows it; one that reads the product does."""
    shape = (64, 64)
    nodes = [
        node("product", "aten.mm.default", "x", "w", results=[shape]),
        node("positive", "aten.relu.default", "product", results=[shape]),
    ]
    for source, fused in (("y", 1), ("product", 0)):
        sums = node("sums", "aten.cumsum.default", source, 0, results=[shape])
        both = node("both", "aten.add.Tensor", "positive", "sums", results=[shape])
        groups = grouped(task({"x": shape, "w": shape, "y": shape}, [*nodes, sums, both], "both"))
        chosen = {step.name: TILES[0] for step in groups.products}
        assert len(fused_products(groups, chosen)) == fused
