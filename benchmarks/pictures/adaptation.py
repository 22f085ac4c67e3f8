"""Draws how a policy adapts: the share of shapes whose first proposal is near the best, over the shapes that it adapts to.

Run from the repository's root: python -m benchmarks.pictures.adaptation benchmarks/results/calibration_2026-11-23.jsonl
docs/pictures/h200_adaptation.svg
"""

import json
from collections import defaultdict
from itertools import pairwise
from statistics import mean

from benchmarks.pictures.svg import FAINT, GOOD, OTHERS, OURS, LogAxis, document, dot, line, main, text
from contract.errors import UsageError

WIDTH, HEIGHT, LEFT, RIGHT, TOP, FOOT = 660, 340, 60.0, 460.0, 50.0, 290.0
FIGURE, LOW, HIGH = "first within 5 %", 0.5, 0.9
CURVES = {"adapted": OURS, "server runs alone": OTHERS}
LEVELS = {"offline policy": GOOD, "analytic prior": FAINT}


def draw(result: str) -> str:
    """Means over the draws of shapes. Raises: UsageError where an arm is missing."""
    found: dict[tuple[str, int], list[float]] = defaultdict(list)
    for row in map(json.loads, result.splitlines()):
        found[row["arm"], row["shapes"]].append(row[FIGURE])
    if missing := {*CURVES, *LEVELS} - {arm for arm, _ in found}:
        raise UsageError(f"the rows lack {sorted(missing)[0]!r}; run python -m benchmarks.calibration")
    counts = sorted({shapes for arm, shapes in found if arm in CURVES})
    axis = LogAxis(counts[0], counts[-1], LEFT, RIGHT)
    body = [text(LEFT, 24, "First proposals within 5 % of the best: from offline runs to server mode", 14)]
    for tick in (LOW, 0.6, 0.7, 0.8, HIGH):
        body += [line(LEFT, _y(tick), RIGHT, _y(tick)), text(LEFT - 8, _y(tick) + 4, f"{tick:.0%}", 11, "end")]
    body += [text(axis.x(count), FOOT + 18, str(count), 11, "middle", FAINT) for count in counts]
    body.append(text((LEFT + RIGHT) / 2, FOOT + 36, "shapes of server mode that were measured", 11, "middle"))
    ends = {**{arm: _mean(found, arm, 0) for arm in LEVELS}, **{arm: _mean(found, arm, counts[-1]) for arm in CURVES}}
    for arm, colour in LEVELS.items():
        body.append(line(LEFT, _y(ends[arm]), RIGHT, _y(ends[arm]), colour, 1.5, dash=True))
    for arm, colour in CURVES.items():
        points = [(axis.x(count), _y(_mean(found, arm, count))) for count in counts]
        body += [line(x1, y1, x2, y2, colour, 2.5) for (x1, y1), (x2, y2) in pairwise(points)]
        body += [dot(x, y, 3, colour) for x, y in points]
    names = {"offline policy": "offline policy, not adapted"}
    for arm, colour in {**LEVELS, **CURVES}.items():
        body.append(text(RIGHT + 10, _y(ends[arm]) + 4, names.get(arm, arm), 12, colour=colour))
    return document(WIDTH, HEIGHT, body)


def _mean(found: dict[tuple[str, int], list[float]], arm: str, shapes: int) -> float:
    return mean(found[arm, shapes])


def _y(share: float) -> float:
    return FOOT - (FOOT - TOP) * (share - LOW) / (HIGH - LOW)


if __name__ == "__main__":
    main(__doc__, draw)
