"""Convolutions by minimal filtering: every tile, uneven sizes and pads, transposed ones, and what follows them."""

import numpy as np
import pytest

pytest.importorskip("cudal2_agent.sandbox.emulator._core", reason="the emulator's core is not built here")
pytest.importorskip("torch", reason="modules are proved with PyTorch")

import torch

from cudal2_agent.contract.plan.chip import REFERENCE_CHIPS
from cudal2_agent.contract.records.module_task import ModuleTask
from cudal2_agent.contract.records.named_buffer import Role
from cudal2_agent.contract.records.task import Arch
from cudal2_agent.policies.fusion.fused_source import parsed, written
from cudal2_agent.policies.fusion.grouping import grouped
from cudal2_agent.policies.fusion.product_kernels.tiles import WINOGRAD_TILES, SumTile
from cudal2_agent.policies.fusion.space import choices
from tests.policies.fusion.emulated import Array, emulated, inputs_of
from tests.policies.fusion.graphs import node, task
from tests.policies.fusion.proving import candidate_of, failed
from tests.sandbox.emulator.compiled import PtxCompiler
from tests.sandbox.emulator.proving import Build


def convolution(
    inner: int, outer: int, size: tuple[int, ...], pad: int, *, transposed: bool = False, images: int = 2, follows: bool = False
) -> ModuleTask:
    """Three taps in each dimension; with a bias and a ReLU behind it where something `follows`."""
    rank, grown = len(size), 2 - 2 * pad if transposed else 2 * pad - 2
    shape = (images, outer, *(each + grown for each in size))
    args = [[1] * rank, [pad] * rank, [1] * rank, transposed, [0] * rank, 1]
    nodes = [node("conv", "aten.convolution.default", "x", "w", "b" if follows else None, *args, results=[shape])]
    if follows:
        nodes.append(node("positive", "aten.relu.default", "conv", results=[shape]))
    weight = (inner, outer) if transposed else (outer, inner)
    inputs = {"x": (images, inner, *size), "w": (*weight, *[3] * rank)} | ({"b": (outer,)} if follows else {})
    module = task(inputs, nodes, nodes[-1].name)
    roles = {"w": Role.PARAMETER, "b": Role.PARAMETER}
    buffers = tuple(each.model_copy(update={"role": roles.get(each.name, each.role)}) for each in module.buffers)
    return module.model_copy(update={"buffers": buffers})


def expected(module: ModuleTask, inputs: dict[str, Array]) -> Array:
    """In f64."""
    args = module.graph.nodes[0].args
    wide = {name: torch.from_numpy(each).double() for name, each in inputs.items()}
    made = torch.ops.aten.convolution(wide["x"], wide["w"], wide.get("b"), *args[3:])
    return (made.relu() if len(module.graph.nodes) > 1 else made).numpy()


@pytest.mark.parametrize("tile", [*WINOGRAD_TILES[2], *WINOGRAD_TILES[3]], ids=SumTile.text)
def test_every_tile(tile: SumTile, compiler: PtxCompiler) -> None:
    """With channels that fill neither a step nor a CTA, and tiles that do not fill one."""
    module = convolution(tile.k + 3, tile.m + 3, (5, 6, 4) if tile.points == 64 else (9, 14), 1)
    assert parsed(tile.text()) == tile
    assert tile.k == tile.threads // tile.n
    inputs = inputs_of(module)
    out = emulated(written(module, grouped(module), {"k0": tile}), module, inputs, compiler)["out"]
    np.testing.assert_allclose(out, expected(module, inputs), atol=1e-4)


def test_a_permuted_input_is_read_where_it_lies(compiler: PtxCompiler) -> None:
    """Channels last: no two neighbours of a line lie together."""
    module = convolution(8, 5, (6, 8), 1)
    turned = node("turned", "aten.permute.default", "y", [0, 3, 1, 2], results=[(2, 8, 6, 8)])
    (conv,) = module.graph.nodes
    conv = conv.model_copy(update={"args": ({"node": "turned"}, *conv.args[1:])})
    buffers = tuple(
        each.model_copy(update={"name": "y", "shape": (2, 6, 8, 8)}) if each.name == "x" else each for each in module.buffers
    )
    module = module.model_copy(update={"graph": module.graph.model_copy(update={"nodes": (turned, conv)}), "buffers": buffers})
    inputs = inputs_of(module)
    candidate = written(module, grouped(module), {"k0": WINOGRAD_TILES[2][-1]})
    wanted = expected(
        convolution(8, 5, (6, 8), 1), {"x": np.ascontiguousarray(inputs["y"].transpose(0, 3, 1, 2)), "w": inputs["w"]}
    )
    np.testing.assert_allclose(emulated(candidate, module, inputs, compiler)["out"], wanted, atol=1e-4)


def test_it_is_tried_first_where_it_saves_products() -> None:
    """The best tile of each other kind comes next. Taps of very different sizes, which an input may have, are left to tiles."""
    chip = REFERENCE_CHIPS[Arch.SM_90A]

    def kinds(module: ModuleTask) -> list[str]:
        return [each.kind for each in choices(grouped(module), chip)["k0"] if isinstance(each, SumTile)]

    large = convolution(48, 48, (32, 64, 64), 0, transposed=True)
    assert kinds(large)[0] == "winograd3d"
    assert set(kinds(large)[1:3]) == {"tile", "dmma"}
    assert kinds(convolution(64, 64, (256, 256), 1))[0] == "winograd2d"
    assert kinds(convolution(512, 512, (7, 7), 1))[0] != "winograd2d"  # no more CTAs than tiles whose sums are split
    assert kinds(convolution(3, 64, (32, 64, 64), 0))[0] != "winograd3d"  # a step has eight channels
    given = tuple(each.model_copy(update={"role": Role.INPUT}) if each.name == "w" else each for each in large.buffers)
    assert "winograd3d" not in kinds(large.model_copy(update={"buffers": given}))


@pytest.mark.parametrize("transposed", [False, True])
@pytest.mark.parametrize("pad", [0, 1, 2])
@pytest.mark.parametrize("size", [(5, 8), (6, 7), (3, 4, 6), (4, 3, 5)])
def test_sizes_and_pads(size: tuple[int, ...], pad: int, transposed: bool, compiler: PtxCompiler) -> None:
    module = convolution(8, 5, size, pad, transposed=transposed, follows=True)
    tile = WINOGRAD_TILES[len(size)][-1]
    (product,) = grouped(module).products
    candidate, _ = candidate_of(module, **{product.name: tile})
    assert len(candidate.plan.launches) == 2
    inputs = inputs_of(module)
    np.testing.assert_allclose(emulated(candidate, module, inputs, compiler)["out"], expected(module, inputs), atol=1e-4)


@pytest.mark.parametrize("size", [(6, 5), (4, 5, 6)])
@pytest.mark.parametrize("transposed", [False, True])
def test_it_passes_the_proof_with_what_follows(size: tuple[int, ...], transposed: bool, build: Build) -> None:
    """Infinities and NaN too, which may spread."""
    module = convolution(8, 8, size, 1, transposed=transposed, follows=True)
    (product,) = grouped(module).products
    candidate, _ = candidate_of(module, **{product.name: WINOGRAD_TILES[len(size)][-1]})
    assert failed(candidate, module, build) == []
