"""Draws a result of `diagnosis` as an SVG: whether each known fault was found, and the speedup by its remedy.

Run from the repository's root: python -m benchmarks.pictures.diagnosis benchmarks/results/NAME.json docs/pictures/NAME.svg
"""

from collections.abc import Iterator, Sequence
from statistics import geometric_mean, median

from benchmarks.diagnosis.diagnosis_table import IMPROVED, DiagnosisResult, DiagnosisRow, ratios
from benchmarks.pictures.svg import BAD, FAINT, GOOD, INK, OTHERS, OURS, LogAxis, badge, bar, document, dot, line, main, text

WIDTH, LEFT, RIGHT, TOP, ROW = 900, 20, 880, 100, 31
BADGE, FINDING, PLOT, MEDIAN = 284.0, 300.0, (430.0, 760.0), 825.0
HEAD = 58  # a panel's title, its figures and the labels of its axis
REMEDY, CONTROL, BY_HAND = "heaviest", "control", "by hand"
KINDS = {REMEDY: ("remedied", OURS), CONTROL: ("random", OTHERS), BY_HAND: ("remedied", OURS)}
SECOND, LATER = "#5f9e7e", "#b58a1b"


def draw(result: DiagnosisResult) -> str:
    rows = [row for row in result.rows if row.status == "measured"]
    schedules = _sorted([row for row in rows if not row.by_hand], REMEDY)
    written = _sorted([row for row in rows if row.by_hand], BY_HAND)
    below = TOP + HEAD + ROW * len(schedules) + 42
    foot = below + HEAD + ROW * len(written) + 42
    title = "Schedules: at most three random neighbours that relieve the top finding"
    body = [*_head(result, rows), *_panel(title, schedules, (REMEDY, CONTROL), TOP)]
    body += _panel("Kernels written by hand: the manual fix of the constructed fault", written, (BY_HAND,), below)
    return document(WIDTH, foot + 46, [*body, *_foot(rows, foot)])


def _sorted(rows: Sequence[DiagnosisRow], kind: str) -> list[DiagnosisRow]:
    """Largest speedup by the remedy first; kernels without a remedied version last."""
    return sorted(rows, key=lambda row: -median(ratios(row.trials, kind) or [0.0]))


def _head(result: DiagnosisResult, rows: Sequence[DiagnosisRow]) -> Iterator[str]:
    gpu = result.environment.gpu if result.environment else "no GPU"
    yield text(LEFT, 26, f"{len(rows)} kernels with a known fault: is it found, and does its remedy help?", 16, bold=True)
    yield text(RIGHT, 26, f"{gpu}, {result.date}", 12, "end", FAINT)
    counts = [sum(row.rank == place for row in rows) for place in (1, 2)]
    lost = sum(row.rank is None for row in rows)
    yield text(LEFT, 54, "Place of the known fault among the findings:")
    for rank, words, x in (
        (1, f"first, {counts[0]}", 312),
        (2, f"second, {counts[1]}", 432),
        (3, f"third or later, {len(rows) - sum(counts) - lost}", 536),
        (None, f"not found, {lost}", 684),
    ):
        yield badge(x, 50, _place(rank), _colour(rank)) + text(x + 14, 54, words)
    yield text(LEFT, 78, "Speed over the faulty kernel:")
    for (words, colour), x in ((KINDS[REMEDY], 223), (("random neighbours (control)", OTHERS), 330)):
        yield bar(x, 70, 20, 8, colour) + text(x + 26, 78, words)
    yield text(565, 78, "bar: median; dot: one candidate; log scale", colour=FAINT)


def _panel(title: str, rows: Sequence[DiagnosisRow], kinds: Sequence[str], top: float) -> Iterator[str]:
    found = [1.0, *(ratio for row in rows for kind in kinds for ratio in ratios(row.trials, kind))]
    axis = LogAxis(min(found) / 1.1, max(found) * 1.1, *PLOT)
    first, foot = top + HEAD, top + HEAD + ROW * len(rows)
    several = any(len(ratios(row.trials, kind)) > 1 for row in rows for kind in kinds)
    yield text(LEFT, top + 12, title, 13, bold=True)
    yield text(LEFT, top + 29, _figures(rows, kinds), 11, colour=FAINT)
    yield text(BADGE - 9, first - 5, "top finding", 11, colour=FAINT)
    yield text(MEDIAN, first - 5, "median" if several else "speed", 11, "end", FAINT)
    if several:
        yield text(RIGHT, first - 5, "best", 11, "end", FAINT)
    yield from axis.grid(first, foot, "×")
    yield line(axis.x(1), first, axis.x(1), foot, INK, 1.5)
    yield text(axis.x(1) + 5, foot + 14, "faster →", 11, colour=FAINT)
    if min(found) < 1:
        yield text(axis.x(1) - 5, foot + 14, "← slower than the faulty kernel", 11, "end", FAINT)
    for place, row in enumerate(rows):
        middle = first + ROW * (place + 0.5)
        yield from _names(row, middle)
        for lane, kind in enumerate(kinds):
            yield from _bars(row, kind, axis, middle + 12 * (lane - (len(kinds) - 1) / 2))


def _figures(rows: Sequence[DiagnosisRow], kinds: Sequence[str]) -> str:
    """The figures of a panel, by kind."""
    means = ", ".join(f"{KINDS[kind][0]} {_mean(rows, kind)}" for kind in kinds)
    every = [[ratio for row in rows for ratio in ratios(row.trials, kind)] for kind in kinds]
    faster = ", ".join(f"{sum(ratio > IMPROVED for ratio in found)} of {len(found)}" for found in every)
    return f"geometric mean of the medians: {means}; more than 2 % faster: {faster}"


def _mean(rows: Sequence[DiagnosisRow], kind: str) -> str:
    found = [median(one) for row in rows if (one := ratios(row.trials, kind))]
    return f"{geometric_mean(found):.2f}×" if found else "not measured"


def _names(row: DiagnosisRow, y: float) -> Iterator[str]:
    yield text(LEFT, y - 1, row.name) + text(LEFT, y + 11, row.fault, 10, colour=FAINT)
    yield badge(BADGE, y, _place(row.rank), _colour(row.rank))
    yield text(FINDING, y + 4, row.findings[0].bottleneck if row.findings else "none")


def _bars(row: DiagnosisRow, kind: str, axis: LogAxis, y: float) -> Iterator[str]:
    """A bar from the speed of the faulty kernel to the median, and a dot per candidate."""
    found = ratios(row.trials, kind)
    if not found:
        yield text(RIGHT, y + 4, "not measured", 11, "end", FAINT)
        return
    colour, ink = KINDS[kind][1], FAINT if kind == CONTROL else INK
    ends = sorted((axis.x(1), axis.x(median(found))))
    yield bar(ends[0], y - 4, ends[1] - ends[0], 8, colour)
    yield from (dot(axis.x(ratio), y, 3, colour, INK) for ratio in found)
    yield text(MEDIAN, y + 4, f"{median(found):.2f}×", 11, "end", ink)
    if len(found) > 1:
        yield text(RIGHT, y + 4, f"{max(found):.2f}×", 11, "end", ink)


def _foot(rows: Sequence[DiagnosisRow], y: float) -> Iterator[str]:
    """Figures that qualify the bars: the choice by the prior, and noise."""
    if any(ratios(row.trials, f"{CONTROL}, by prior") for row in rows):
        steered, free = (_mean(rows, f"{kind}, by prior") for kind in (REMEDY, CONTROL))
        words = f"{steered} among those that relieve the top finding, {free} among all."
        yield text(LEFT, y + 10, f"With neighbours chosen by the product's time model, not at random: {words}", 11)
    noise = [max(row.repeat, 1 / row.repeat) - 1 for row in rows if row.repeat]
    again = (
        f"A faulty kernel measured again differed by {median(noise):.1%} (median), maximum {max(noise):.0%}. " if noise else ""
    )
    yield text(LEFT, y + 27, f"{again}Other known properties of a kernel are not counted in the places.", 11)


def _place(rank: int | None) -> str:
    return "–" if rank is None else str(rank)


def _colour(rank: int | None) -> str:
    return BAD if rank is None else {1: GOOD, 2: SECOND}.get(rank, LATER)


if __name__ == "__main__":
    main(__doc__, lambda stored: draw(DiagnosisResult.model_validate_json(stored)))
