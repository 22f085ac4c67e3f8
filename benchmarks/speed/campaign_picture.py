"""Draws campaign results as an SVG: speedup over the time that AutoTuning takes, one dot per shape.

Run from the repository's root:
    python -m benchmarks.speed.campaign_picture benchmarks/campaigns/rows docs/pictures/h200_campaign.svg
Drawn are the shapes of the grid in layout `nn`, FP16 with FP32 accumulation. Held-out shapes have an edge.
"""

from collections.abc import Iterator, Sequence
from itertools import pairwise
from math import log2
from pathlib import Path

from benchmarks.harness import execute, script, write_text
from benchmarks.speed.grid import held_out
from benchmarks.speed.summary import is_headline
from benchmarks.speed.svg import BAND, FAINT, INK, OURS, RULE, LogAxis, bar, document, dot, line, text
from cudal2_agent.agent.campaign.report.figures import (
    BOUNDS_US,
    CLASS_NAMES,
    CLASSES,
    class_of,
    figures_of,
    has_result,
    speedups,
)
from cudal2_agent.agent.campaign.result_files import counting, read_results
from cudal2_agent.contract.errors import UsageError
from cudal2_agent.contract.records.campaign import ShapeResult
from cudal2_agent.contract.records.evaluation import AUTOTUNED
from cudal2_agent.contract.records.task import TimingMode

WIDTH, LEFT, RIGHT, TOP, PLOT, GAP = 860, 56, 840, 84, 230, 88
TICKS = (0.7, 0.8, 0.9, 1.0, 1.2, 1.4, 1.7, 2.0, 2.5, 3.0)


def draw(rows: Sequence[ShapeResult]) -> str:
    """One plot per mode that has rows. Raises: UsageError where there is none."""
    found = [row for row in rows if is_headline(row) and has_result(row)]
    by_mode = {mode: [row for row in found if row.task.mode is mode] for mode in TimingMode}
    drawn = {mode: members for mode, members in by_mode.items() if members}
    if not drawn:
        raise UsageError("no row of the grid has a result; there is nothing to draw")
    times = [row.baselines_us[AUTOTUNED] for row in found]
    axis = LogAxis(min(times) / 1.15, max(times) * 1.15, LEFT, RIGHT)
    body = [text(LEFT, 20, f"Speedup over cuBLASLt-AutoTuning, one dot per shape, {found[0].environment}", 14)]
    body += _legend()
    for number, (mode, members) in enumerate(drawn.items()):
        body += _plot(mode, members, axis, TOP + number * (PLOT + GAP), _span(found))
    return document(WIDTH, TOP + len(drawn) * (PLOT + GAP) - 20, body)


def _legend() -> Iterator[str]:
    yield dot(LEFT + 5, 36, 3, OURS)
    yield text(LEFT + 14, 40, "shape of the grid")
    yield dot(LEFT + 145, 36, 3, OURS, INK)
    yield text(LEFT + 154, 40, "held out of every tuning")
    yield text(RIGHT, 40, "x: device time of AutoTuning; bold: geometric mean of a class", 12, "end", FAINT)


def _span(rows: Sequence[ShapeResult]) -> tuple[float, float]:
    """Logarithms of the ends of the vertical axis, which both plots share."""
    ratios = speedups(rows)
    return log2(min(0.95, *ratios) / 1.02), log2(max(1.1, *ratios) * 1.02)


def _plot(mode: TimingMode, rows: Sequence[ShapeResult], axis: LogAxis, top: float, span: tuple[float, float]) -> Iterator[str]:
    low, high = span

    def y(ratio: float) -> float:
        return top + PLOT * (high - log2(ratio)) / (high - low)

    yield from _classes(rows, axis, top)
    for tick in TICKS:
        if low <= log2(tick) <= high:
            yield line(LEFT, y(tick), RIGHT, y(tick), INK if tick == 1 else RULE, 1.5 if tick == 1 else 1)
            yield text(LEFT - 8, y(tick) + 4, f"{tick:g}x", 11, "end")
    for tick in axis.ticks():
        yield text(axis.x(tick), top + PLOT + 15, f"{tick:g} µs", 11, "middle", FAINT)
    apart = held_out()
    for row in sorted(rows, key=lambda row: row.task.shape in apart):
        assert row.best is not None
        edge = INK if row.task.shape in apart else "none"
        yield dot(axis.x(row.baselines_us[AUTOTUNED]), y(row.best.speedup.ratio), 2.4, OURS, edge)
    figures = figures_of(rows)
    told = (
        f"{mode.value}: {figures.shapes:,} shapes, geometric mean {figures.geomean:.3f}x, faster on {figures.faster_share:.1%}"
    )
    yield text(LEFT, top + PLOT + 36, told, 13, bold=True)


def _classes(rows: Sequence[ShapeResult], axis: LogAxis, top: float) -> Iterator[str]:
    """Every second class on a band, with its geometric mean above."""
    means = figures_of(rows).classes
    for number, (name, (low, high)) in enumerate(zip(CLASSES, pairwise(BOUNDS_US), strict=True)):
        left, right = axis.x(max(low, axis.low)), axis.x(min(high, axis.high))
        if right <= left:
            continue
        if number % 2:
            yield bar(left, top, right - left, PLOT, BAND)
        if any(class_of(row) == name for row in rows):
            yield text((left + right) / 2, top - 20, CLASS_NAMES[name], 12, "middle")
            yield text((left + right) / 2, top - 5, f"{means[name]:.2f}x", 12, "middle", bold=True)


def main() -> None:
    parser = script(__file__, __doc__)
    parser.add_argument("rows", type=Path, nargs="+", help="files or folders of rows")
    parser.add_argument("picture", type=Path)
    parser.add_argument("--environment")
    options = parser.parse_args()
    write_text(options.picture, draw(counting(read_results(options.rows), options.environment)))


if __name__ == "__main__":
    execute(main)
