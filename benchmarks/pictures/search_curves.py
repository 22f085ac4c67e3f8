"""Draws what a search finds for how much work: speedup and share near the best known, over GPU seconds and over candidates.

Run from the repository's root:
python -m benchmarks.pictures.search_curves benchmarks/h200/curves.json docs/pictures/h200_search_curves.svg
"""

import json
from collections.abc import Callable, Iterator, Sequence
from itertools import pairwise
from typing import Any

from benchmarks.pictures.svg import FAINT, INK, OTHERS, OURS, LogAxis, document, dot, line, main, text
from cudal2_agent.contract.errors import UsageError
from cudal2_agent.contract.records.task import TimingMode

WIDTH, TOP, PLOT, GAP = 860, 90, 190, 84
PANELS = (("over_gpu_seconds", "GPU seconds of screening", 56.0, 390.0), ("over_candidates", "candidates", 490.0, 812.0))
TICKS = (1.0, 1.05, 1.1, 1.15, 1.2, 1.25, 1.3, 1.4, 1.5)


def draw(result: str) -> str:
    """Two plots per mode that has searches. Raises: UsageError where there is none."""
    found = json.loads(result)
    drawn = {mode.value: found[mode.value] for mode in TimingMode if found[mode.value]["shapes"]}
    if not drawn:
        raise UsageError("there are no searches to draw; run python -m benchmarks.h200.curves")
    body = [text(56, 20, "What a search finds for how much work, means over shapes", 14)]
    body += [line(56, 38, 80, 38, OURS, 2.5), text(86, 42, "speedup over AutoTuning (left)")]
    body += [line(300, 38, 324, 38, OTHERS, 2.5), text(330, 42, "share within 2 % of the best known (right)")]
    for number, (mode, figures) in enumerate(drawn.items()):
        top = TOP + number * (PLOT + GAP)
        for key, what, left, right in PANELS:
            body += _panel(figures[key], what, LogAxis(figures[key][0]["at"], figures[key][-1]["at"], left, right), top)
        body.append(text(56, top - 14, f"{mode}: {figures['shapes']} searches", 13, bold=True))
    return document(WIDTH, TOP + len(drawn) * (PLOT + GAP) - 20, body)


def _panel(points: Sequence[dict[str, Any]], what: str, axis: LogAxis, top: float) -> Iterator[str]:
    high: float = max(1.05, *(point["geomean"] for point in points)) * 1.01
    low: float = min(1.0, *(point["geomean"] for point in points))

    def speed(value: float) -> float:
        return top + PLOT * (high - value) / (high - low)

    def share(value: float) -> float:
        return top + PLOT * (1 - value)

    for tick in TICKS:
        if low <= tick <= high:
            yield line(axis.left, speed(tick), axis.right, speed(tick))
            yield text(axis.left - 8, speed(tick) + 4, f"{tick:g}x", 11, "end")
    for tick in (0.0, 0.5, 1.0):
        yield text(axis.right + 8, share(tick) + 4, f"{tick:.0%}", 10, "start", FAINT)
    for point in points:
        yield text(axis.x(point["at"]), top + PLOT + 15, f"{point['at']:g}", 11, "middle", FAINT)
    yield text((axis.left + axis.right) / 2, top + PLOT + 31, what, 11, "middle", INK)
    yield from _curve([(axis.x(point["at"]), point["near_share"]) for point in points], share, OTHERS)
    yield from _curve([(axis.x(point["at"]), point["geomean"]) for point in points], speed, OURS)


def _curve(points: Sequence[tuple[float, float]], y: Callable[[float], float], colour: str) -> Iterator[str]:
    for (x1, before), (x2, after) in pairwise(points):
        yield line(x1, y(before), x2, y(after), colour, 2.5)
    for x, value in points:
        yield dot(x, y(value), 3, colour)


if __name__ == "__main__":
    main(__doc__, draw)
