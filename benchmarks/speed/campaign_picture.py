"""Draws campaign results as an SVG: speedup over the time that AutoTuning takes, one dot per shape.

Run from the repository's root:
    python -m benchmarks.speed.campaign_picture benchmarks/campaigns/rows docs/pictures/h200_campaign.svg
Drawn are the shapes of the grid in layout `nn`, FP16 with FP32 accumulation. Held-out shapes have an edge.
"""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from html import escape
from itertools import pairwise
from math import floor, log2, log10
from pathlib import Path

from benchmarks.harness import execute, script, write_text
from benchmarks.speed.grid import held_out
from benchmarks.speed.summary import is_headline
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

INK, FAINT, RULE, BAND = "#222", "#666", "#ddd", "#f3f3f0"
OURS = "#d1662b"


def text(x: float, y: float, words: str, size: int = 12, anchor: str = "start", colour: str = INK, bold: bool = False) -> str:
    style = ("" if anchor == "start" else f' text-anchor="{anchor}"') + (' font-weight="bold"' if bold else "")
    return f'<text x="{x:.1f}" y="{y:.1f}" font-size="{size}"{style} fill="{colour}">{escape(words, quote=False)}</text>'


def line(x1: float, y1: float, x2: float, y2: float, colour: str = RULE, width: float = 1) -> str:
    ends = f'x1="{x1:.1f}" x2="{x2:.1f}" y1="{y1:.1f}" y2="{y2:.1f}"'
    return f'<line {ends} stroke="{colour}" stroke-width="{width:g}"/>'


def bar(x: float, y: float, width: float, height: float, colour: str) -> str:
    return f'<rect x="{x:.1f}" y="{y:.1f}" width="{width:.1f}" height="{height:.1f}" fill="{colour}"/>'


def dot(x: float, y: float, radius: float, colour: str, edge: str = "none") -> str:
    return f'<circle cx="{x:.1f}" cy="{y:.1f}" r="{radius:g}" fill="{colour}" stroke="{edge}"/>'


def document(width: float, height: float, body: Sequence[str]) -> str:
    size = f'width="{width:g}" height="{height:g}"'
    head = f'<svg xmlns="http://www.w3.org/2000/svg" {size} viewBox="0 0 {width:g} {height:g}" font-family="sans-serif">'
    return "\n".join([head, f'<rect {size} fill="white"/>', *body, "</svg>\n"])


@dataclass(frozen=True)
class LogAxis:
    """A horizontal logarithmic axis from `low` at `left` to `high` at `right`."""

    low: float
    high: float
    left: float
    right: float

    def x(self, value: float) -> float:
        return self.left + (self.right - self.left) * log10(value / self.low) / log10(self.high / self.low)

    def ticks(self) -> Iterator[float]:
        """1, 2 and 5 times the powers of ten within the axis."""
        for power in range(floor(log10(self.low)), floor(log10(self.high)) + 1):
            yield from (tick for step in (1, 2, 5) if self.low <= (tick := step * 10.0**power) <= self.high)


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
