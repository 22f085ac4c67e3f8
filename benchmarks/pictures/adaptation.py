"""Draws how a policy adapts: the share of shapes whose first proposal is near the best, over the shapes that it adapts to.

Run from the repository's root: python -m benchmarks.pictures.adaptation benchmarks/results/calibration_2026-11-23.jsonl
docs/pictures/h200_adaptation.svg
Rows are those of `python -m benchmarks.calibration` or `python -m benchmarks.calibration.calibrated`.
"""

import json
from collections import defaultdict
from itertools import pairwise
from math import ceil, floor
from statistics import mean

from benchmarks.pictures.svg import FAINT, GOOD, OTHERS, OURS, LogAxis, document, dot, line, main, text
from cudal2_agent.contract.errors import UsageError

WIDTH, HEIGHT, LEFT, RIGHT, TOP, FOOT = 690, 340, 60.0, 460.0, 50.0, 290.0
NAME_HEIGHT = 15.0
FIGURE = "first within 5 %"
ALONE, BASES = ("server runs alone", "these runs alone"), ("offline policy", "policy that ships")


def draw(result: str) -> str:
    """Means over the draws of shapes. Raises: UsageError where an arm is missing."""
    found: dict[tuple[str, int], list[float]] = defaultdict(list)
    kind = "server mode"
    for row in map(json.loads, result.splitlines()):
        found[row["arm"], row["shapes"]].append(row[FIGURE])
        kind = row.get("kind", kind)
    curves = {"adapted": OURS, _one_of(ALONE, found): OTHERS}
    levels = {_one_of(BASES, found): GOOD, "analytic prior": FAINT}
    if missing := {*curves, *levels} - {arm for arm, _ in found}:
        raise UsageError(f"the rows lack {sorted(missing)[0]!r}; run python -m benchmarks.calibration")
    counts = sorted({shapes for arm, shapes in found if arm in curves})
    means = {key: mean(values) for key, values in found.items() if key[0] in (*curves, *levels)}
    low, high = floor(10 * min(means.values())), ceil(10 * max(means.values()))

    def y(share: float) -> float:
        return FOOT - (FOOT - TOP) * (share - low / 10) / ((high - low) / 10)

    axis = LogAxis(counts[0], counts[-1], LEFT, RIGHT)
    body = [text(LEFT, 24, f"First proposals within 5 % of the best, adapting to {kind}", 14)]
    for tick in range(low, high + 1):
        body += [line(LEFT, y(tick / 10), RIGHT, y(tick / 10)), text(LEFT - 8, y(tick / 10) + 4, f"{tick / 10:.0%}", 11, "end")]
    body += [text(axis.x(count), FOOT + 18, str(count), 11, "middle", FAINT) for count in counts]
    body.append(text((LEFT + RIGHT) / 2, FOOT + 36, f"measured shapes ({kind})", 11, "middle"))
    ends = {**{arm: means[arm, 0] for arm in levels}, **{arm: means[arm, counts[-1]] for arm in curves}}
    for arm, colour in levels.items():
        body.append(line(LEFT, y(ends[arm]), RIGHT, y(ends[arm]), colour, 1.5, dash=True))
    for arm, colour in curves.items():
        points = [(axis.x(count), y(means[arm, count])) for count in counts]
        body += [line(x1, y1, x2, y2, colour, 2.5) for (x1, y1), (x2, y2) in pairwise(points)]
        body += [dot(at_x, at_y, 3, colour) for at_x, at_y in points]
    lowest = TOP
    for arm in sorted(ends, key=lambda arm: y(ends[arm])):
        lowest = max(y(ends[arm]), lowest)  # names that would overlap stand below each other
        name = f"{arm}, not adapted" if arm in BASES else arm
        body.append(text(RIGHT + 10, lowest + 4, name, 12, colour={**levels, **curves}[arm]))
        lowest += NAME_HEIGHT
    return document(WIDTH, HEIGHT, body)


def _one_of(names: tuple[str, ...], found: dict[tuple[str, int], list[float]]) -> str:
    """The one that the rows have, else the first."""
    return next((name for name in names if any(arm == name for arm, _ in found)), names[0])


if __name__ == "__main__":
    main(__doc__, draw)
