"""Draws what searches by different priors have found after so many candidates.

Run from the repository's root:
python -m benchmarks.pictures.search_budgets benchmarks/results/h200_budgets_2026-11-24 docs/pictures/h200_budgets.svg
The folder is one of `python -m benchmarks.proposals.budgets`. Before its first working kernel a search counts as 1.
"""

import argparse
from collections.abc import Iterable
from itertools import pairwise
from math import ceil, floor
from pathlib import Path
from statistics import geometric_mean

from benchmarks.pictures.svg import BAD, FAINT, GOOD, OTHERS, OURS, LogAxis, document, dot, line, text
from benchmarks.proposals.budgets import Arms, BudgetedSearch, read_arms
from cudal2_agent.contract.errors import UsageError

WIDTH, HEIGHT, LEFT, RIGHT, TOP, FOOT = 680, 350, 60.0, 520.0, 56.0, 296.0
CANDIDATES = (1, 2, 4, 8, 16, 24, 32, 48)
COLOURS = (OTHERS, GOOD, BAD, OURS)
NAME_HEIGHT = 15.0


def draw(arms: Arms) -> str:
    """Geometric means over shapes. Raises: UsageError for more arms than there are colours."""
    if len(arms) > len(COLOURS):
        raise UsageError(f"there are colours for {len(COLOURS)} searches; name a folder with fewer")
    curves = {name: _curve(arm.values()) for name, arm in arms.items()}
    speeds = [speed for curve in curves.values() for _, speed in curve]
    low, high = floor(20 * min(speeds)), ceil(20 * max(speeds))

    def y(speed: float) -> float:
        return FOOT - (FOOT - TOP) * (20 * speed - low) / (high - low)

    axis = LogAxis(CANDIDATES[0], CANDIDATES[-1], LEFT, RIGHT)
    shapes = len(next(iter(arms.values())))
    body = [text(LEFT, 24, f"Best kernel so far over cuBLASLt-AutoTuning, {shapes} held-out shapes", 14)]
    for tick in range(low, high + 1):
        body += [
            line(LEFT, y(tick / 20), RIGHT, y(tick / 20)),
            text(LEFT - 8, y(tick / 20) + 4, f"{tick / 20:.2f}x", 11, "end"),
        ]
    body += [text(axis.x(count), FOOT + 18, str(count), 11, "middle", FAINT) for count in CANDIDATES]
    body.append(text((LEFT + RIGHT) / 2, FOOT + 36, "candidates", 11, "middle"))
    lowest = TOP
    for (name, curve), colour in sorted(zip(curves.items(), COLOURS, strict=False), key=lambda one: -one[0][1][-1][1]):
        points = [(axis.x(count), y(speed)) for count, speed in curve]
        body += [line(x1, y1, x2, y2, colour, 2.5) for (x1, y1), (x2, y2) in pairwise(points)]
        body += [dot(at_x, at_y, 3, colour) for at_x, at_y in points]
        lowest = max(points[-1][1], lowest)  # names that would overlap stand below each other
        body.append(text(RIGHT + 12, lowest + 4, name, 12, colour=colour))
        lowest += NAME_HEIGHT
    return document(WIDTH, HEIGHT, body)


def _curve(searches: Iterable[BudgetedSearch]) -> list[tuple[int, float]]:
    """The mean after each number of candidates, up to the largest number that a search tried."""
    found = [one.search.best for one in searches]
    most = max(len(best) for best in found)
    counts = [count for count in CANDIDATES if count <= most]
    return [(count, geometric_mean(best[min(count, len(best)) - 1] or 1.0 for best in found)) for count in counts]


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("folder", type=Path)
    parser.add_argument("picture", type=Path)
    options = parser.parse_args()
    options.picture.write_text(draw(read_arms(options.folder)), encoding="utf-8")


if __name__ == "__main__":
    main()
