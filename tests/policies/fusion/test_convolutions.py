"""Convolutions whose weight is packed, and transposed ones in phases."""

import pytest

pytest.importorskip("cudal2_agent.sandbox.emulator._core", reason="the emulator's core is not built here")
pytest.importorskip("torch", reason="modules are proved with PyTorch")

from cudal2_agent.contract.plan.chip import REFERENCE_CHIPS
from cudal2_agent.contract.records.task import Arch
from cudal2_agent.policies.fusion.grouping import grouped
from cudal2_agent.policies.fusion.product_kernels.contraction import contraction
from cudal2_agent.policies.fusion.product_kernels.tiles import SumTile
from cudal2_agent.policies.fusion.space import choices
from tests.policies.fusion.convolutions import GEOMETRIES, Geometry
from tests.policies.fusion.graphs import in_half, node, task
from tests.policies.fusion.proving import candidate_of, failed
from tests.sandbox.emulator.proving import Build


@pytest.mark.parametrize(
    ("stride", "dilation", "share"), [(1, 3, 1), (2, 1, 9 / 16), (2, 2, 1 / 4), (5, 2, 9 / 25), (6, 4, 1 / 4)]
)
def test_phases_of_a_transposed_convolution_add_only_their_taps(stride: int, dilation: int, share: float) -> None:
    """Of terms in whole phases; steps of the others are left out, and all of a phase that no tap reaches."""
    size = 16 * stride
    made = (size - 1) * stride - 2 + 2 * dilation + 1
    module = Geometry(True, stride, 1, dilation, (size, size), (made, made), inner=8).task()
    (step,) = grouped(module).products
    sums = contraction(step.product, by_tap=True)
    limits, whole = sums.limits(8)
    assert (sums.phases, sums.existing, whole, bool(limits)) == (stride**2, pytest.approx(share), True, share < 1)
    worked = sums.existing * sums.flops
    assert worked < 2 * step.product.operands[0].numel * 2 * 5 * 9  # the taps that each element of the input meets


def test_a_large_convolution_is_packed_first() -> None:
    chip = REFERENCE_CHIPS[Arch.SM_90A]

    def best(images: int, size: int) -> SumTile:
        nodes = [
            node(
                "conv",
                "aten.convolution.default",
                "x",
                "w",
                None,
                [1, 1],
                [1, 1],
                [1, 1],
                False,
                [0, 0],
                1,
                results=[(images, 48, size, size)],
            )
        ]
        found = choices(grouped(task({"x": (images, 32, size, size), "w": (48, 32, 3, 3)}, nodes, "conv")), chip)["k0"][0]
        assert isinstance(found, SumTile)
        return found

    assert best(16, 256).packed
    assert best(16, 256).m == 48
    assert not best(1, 16).packed  # the launch for the weight takes longer


@pytest.mark.parametrize("geometry", [GEOMETRIES[0]._replace(inner=8), GEOMETRIES[-2]])
@pytest.mark.parametrize("text", ["tile 16x128x8 4x4 packed", "dmma 32x128x32 32x32 packed", "mma 32x128x32 32x16 packed"])
def test_a_packed_convolution_and_what_follows_pass_the_proof(geometry: Geometry, text: str, build: Build) -> None:
    """Two launches: the weight's copy, and the sums with what follows them."""
    plain = geometry.task()
    shape = plain.graph.nodes[0].results[0].shape
    positive = node("positive", "aten.relu.default", "conv", results=[shape])
    graph = plain.graph.model_copy(update={"nodes": (*plain.graph.nodes, positive), "outputs": {"out": "positive"}})
    module = plain.model_copy(update={"graph": graph})
    tile = SumTile.parse(text)
    module = in_half(module) if tile.kind == "mma" else module
    candidate, _ = candidate_of(module, k0=tile)
    assert len(candidate.plan.launches) == 2
    assert failed(candidate, module, build) == []


@pytest.mark.parametrize(("columns", "exchanged"), [(8, False), (6, True)])
def test_sums_that_are_not_stored_at_once_are_exchanged(columns: int, exchanged: bool) -> None:
    shape = (40, columns)
    module = task({"a": (40, 9), "b": (9, columns)}, [node("c", "aten.mm.default", "a", "b", results=[shape])], "c")
    candidate, _ = candidate_of(module, k0=SumTile.parse("tile 32x64x16 4x4"))
    assert ("  exchange(sum_of);" in candidate.source) == exchanged


@pytest.mark.parametrize(("text", "inner", "tabled"), [("16x128x8 4x4", 3, True), ("16x128x8 4x4 packed", 8, False)])
def test_terms_that_are_divided_have_a_table(text: str, inner: int, tabled: bool) -> None:
    """A step of eight channels of one tap divides nothing."""
    candidate, _ = candidate_of(GEOMETRIES[0]._replace(inner=inner).task(), k0=SumTile.parse(f"tile {text}"))
    assert ("k0_b::find_term(" in candidate.source) == tabled
