"""Figures of a set of campaign results: geometric means over cuBLASLt-AutoTuning and shares, whole and by class."""

from collections.abc import Sequence
from itertools import pairwise
from math import inf
from statistics import geometric_mean

from cudal2_agent.contract.base import Record
from cudal2_agent.contract.records.campaign import ShapeResult
from cudal2_agent.contract.records.evaluation import AUTOTUNED

# Classes by AutoTuning's time. Unit: microseconds; a class includes its lower bound.
CLASSES = ("under_4us", "4_to_15us", "15_to_60us", "over_60us")
BOUNDS_US = (0.0, 4.0, 15.0, 60.0, inf)
CLASS_NAMES = dict(zip(CLASSES, ("under 4 µs", "4–15 µs", "15–60 µs", "over 60 µs"), strict=True))
DIGITS = 4
SIZES = (64, 128, 256, 512, 1024, 2048, 4096, 8192, 12288, 16384)  # of M, N and K in the grid of the CUDA-L2 paper


class CampaignFigures(Record):
    """What a set of shapes came to. Figures of no shape are None.

    `shapes`: those with a kernel raced against AutoTuning. `without_result`: the others. `faster_share`: of the shapes, those
    whose median paired ratio is above 1; `wholly_faster_share`, `wholly_slower_share`: those whose whole 95 % interval lies on
    one side of 1. `plain_shapes`: those with a kernel raced without programmatic launch.
    `classes`: geometric mean by AutoTuning's time. `proved`: kernels that the emulator ran and found right, large ones in
    part. `gpu_seconds`: mean per shape.
    """

    shapes: int
    geomean: float | None
    geomean_without_programmatic: float | None
    faster_share: float | None
    wholly_faster_share: float | None
    wholly_slower_share: float | None
    classes: dict[str, float | None]
    classes_without_programmatic: dict[str, float | None]
    class_shapes: dict[str, int]
    plain_shapes: int
    without_result: int
    proved: int
    gpu_seconds: float | None
    class_gpu_seconds: dict[str, float | None]


def figures_of(rows: Sequence[ShapeResult]) -> CampaignFigures:
    found = [row for row in rows if has_result(row)]
    classes = {name: [row for row in found if class_of(row) == name] for name in CLASSES}
    return CampaignFigures(
        shapes=len(found),
        geomean=geomean(speedups(found)),
        geomean_without_programmatic=geomean(plain_speedups(found)),
        faster_share=_share([ratio > 1 for ratio in speedups(found)]),
        wholly_faster_share=_share([row.best.speedup.low > 1 for row in found if row.best]),
        wholly_slower_share=_share([row.best.speedup.high < 1 for row in found if row.best]),
        classes={name: geomean(speedups(members)) for name, members in classes.items()},
        classes_without_programmatic={name: geomean(plain_speedups(members)) for name, members in classes.items()},
        class_shapes={name: len(members) for name, members in classes.items()},
        plain_shapes=len(plain_speedups(found)),
        without_result=len(rows) - len(found),
        proved=sum(proved(row) for row in found),
        gpu_seconds=_mean_seconds(rows),
        class_gpu_seconds={name: _mean_seconds(members) for name, members in classes.items()},
    )


def has_result(row: ShapeResult) -> bool:
    return row.best is not None and AUTOTUNED in row.baselines_us


def slowest(rows: Sequence[ShapeResult], count: int) -> list[ShapeResult]:
    """The rows with the smallest speedups, slowest first."""
    raced = [(row.best.speedup.ratio, row) for row in rows if row.best is not None and has_result(row)]
    return [row for _, row in sorted(raced, key=lambda pair: pair[0])[:count]]


def on_grid(row: ShapeResult) -> bool:
    return {row.task.m, row.task.n, row.task.k} <= set(SIZES)


def class_of(row: ShapeResult) -> str:
    """The class of a row with a result."""
    time_us = row.baselines_us[AUTOTUNED]
    return next(name for name, (low, high) in zip(CLASSES, pairwise(BOUNDS_US), strict=True) if low <= time_us < high)


def proved(row: ShapeResult) -> bool:
    """Whether the emulator ran the winner and found it right: whole (`agreed`), or a large task in part (`in-part`)."""
    return row.witness.startswith(("agreed", "in-part"))


def speedups(rows: Sequence[ShapeResult]) -> list[float]:
    return [row.best.speedup.ratio for row in rows if row.best is not None]


def plain_speedups(rows: Sequence[ShapeResult]) -> list[float]:
    """Speedups of plain launches, of the rows that have one."""
    return [row.best_without.speedup.ratio for row in rows if row.best_without is not None]


def geomean(values: Sequence[float]) -> float | None:
    return rounded(geometric_mean(values)) if values else None


def rounded(value: float) -> float:
    return round(value, DIGITS)


def _share(told: Sequence[bool]) -> float | None:
    return rounded(sum(told) / len(told)) if told else None


def _mean_seconds(rows: Sequence[ShapeResult]) -> float | None:
    return rounded(sum(row.gpu_seconds for row in rows) / len(rows)) if rows else None
