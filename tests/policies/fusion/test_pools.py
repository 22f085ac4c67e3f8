"""Pools by lines: columns of a line of windows are reduced once."""

import itertools
import math

import numpy as np
import pytest

from cudal2_agent.contract.plan.chip import REFERENCE_CHIPS
from cudal2_agent.contract.records.module_task import ModuleTask
from cudal2_agent.contract.records.task import Arch
from cudal2_agent.policies.fusion.axes import Axes
from cudal2_agent.policies.fusion.fused_source import written
from cudal2_agent.policies.fusion.grouping import grouped
from cudal2_agent.policies.fusion.space import choices
from tests.policies.fusion.emulated import Array, emulated, inputs_of
from tests.policies.fusion.graphs import node, task
from tests.sandbox.emulator.compiled import PtxCompiler


def pool(op: str, shape: tuple[int, ...], size: list[int], stride: list[int], pad: list[int], *more: object) -> ModuleTask:
    """With ReLU before the pool and a negation behind it."""
    rank = len(size)
    dilation = more[0] if op.startswith("max") and more else [1] * rank
    assert isinstance(dilation, list)
    sides = zip(shape[-rank:], size, stride, pad, dilation, strict=True)
    made = (*shape[:-rank], *((n + 2 * p - d * (k - 1) - 1) // by + 1 for n, k, by, p, d in sides))
    nodes = [
        node("positive", "aten.relu.default", "x", results=[shape]),
        node("pool", f"aten.{op}", "positive", size, stride, pad, *more, results=[made]),
        node("turned", "aten.neg.default", "pool", results=[made]),
    ]
    return task({"x": shape}, nodes, "turned")


def pooled(x: Array, module: ModuleTask, *, average: bool, counts_padding: bool = True) -> Array:
    """By its definition, in f64."""
    args = module.graph.nodes[1].args
    size, stride, pad = args[1:4]
    rank = len(size)
    dilation = args[4] if len(args) > 4 and not average else [1] * rank
    out = np.zeros(module.graph.nodes[1].results[0].shape)
    x = np.maximum(x.astype(np.float64), 0)
    for place in itertools.product(*map(range, out.shape[-rank:])):
        taken = []
        for tap in itertools.product(*map(range, size)):
            at = [p * by + t * d - before for p, by, t, d, before in zip(place, stride, tap, dilation, pad, strict=True)]
            if all(0 <= each < n for each, n in zip(at, x.shape[-rank:], strict=True)):
                taken.append(x[(..., *at)])
        count = math.prod(size) if counts_padding else len(taken)
        out[(..., *place)] = -(np.sum(taken, 0) / count if average else np.max(taken, 0))
    return out


@pytest.mark.parametrize("text", ["lines v1 t32 i1 l1", "lines v1 t64 i4 l1"])
@pytest.mark.parametrize(
    ("op", "shape", "size", "stride", "pad", "more"),
    [
        ("max_pool2d.default", (2, 3, 9, 71), [4, 4], [1, 1], [1, 1], []),
        ("max_pool2d.default", (2, 2, 11, 40), [3, 2], [2, 3], [1, 0], [[2, 3]]),
        ("avg_pool1d.default", (2, 3, 45), [8], [1], [4], []),
        ("avg_pool2d.default", (3, 1, 23, 67), [5, 5], [5, 5], [0, 0], []),
        ("avg_pool2d.default", (2, 1, 6, 37), [3, 3], [1, 1], [1, 1], [False, False]),
        ("avg_pool3d.default", (1, 2, 5, 6, 36), [3, 3, 3], [2, 2, 1], [1, 1, 1], []),
    ],
)
def test_a_pool_by_lines(
    text: str,
    op: str,
    shape: tuple[int, ...],
    size: list[int],
    stride: list[int],
    pad: list[int],
    more: list[object],
    compiler: PtxCompiler,
) -> None:
    """Padding, dilation, and lines that a CTA computes in part."""
    module = pool(op, shape, size, stride, pad, *more)
    candidate = written(module, grouped(module), {"k0": Axes.parse(text)})
    inputs = inputs_of(module)
    average = op.startswith("avg")
    wanted = pooled(inputs["x"], module, average=average, counts_padding=not more)
    np.testing.assert_allclose(emulated(candidate, module, inputs, compiler)["out"], wanted, rtol=2e-6, atol=1e-7)


def test_far_or_odd_windows_are_pooled_by_lines_first() -> None:
    def first(size: int, stride: int, width: int) -> str:
        module = pool("avg_pool2d.default", (16, 64, 256, width), [size] * 2, [stride] * 2, [0, 0])
        return choices(grouped(module), REFERENCE_CHIPS[Arch.SM_90A])["k0"][0].text().split()[0]

    assert first(11, 11, 2048) == "lines"
    assert first(4, 1, 514) == "lines"
    assert first(2, 2, 512) == "flat"  # neighbours read neighbours
