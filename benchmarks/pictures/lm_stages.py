"""Draws what the stages of `train lm` gain: the speed of each proposer's schedules, and the rewards of group-relative steps.

Run from the repository's root:
python -m benchmarks.pictures.lm_stages benchmarks/results/NAME/results.json docs/pictures/h200_lm_stages.svg
The result is one of `python -m benchmarks.language_model.stages`. Speeds are geometric means over cuBLASLt-AutoTuning. What is
no schedule, or fails, counts with the floor of the score, exp(-2).
"""

import json
from itertools import pairwise
from math import ceil, exp, floor
from statistics import fmean
from typing import Any

from benchmarks.pictures.svg import FAINT, GOOD, INK, OTHERS, OURS, LogAxis, document, dot, line, main, text

WIDTH, TOP, ROW = 760.0, 92.0, 24.0
SPEEDS = LogAxis(0.125, 1.5, 200.0, 720.0)
TICKS = (0.125, 0.25, 0.5, 0.75, 1.0, 1.25)
KINDS = (("first", "first proposal", GOOD), ("mean", "all", OTHERS), ("best", "best of a shape", OURS))
CURVE_HEIGHT, LEFT, RIGHT = 180.0, 70.0, 720.0
WINDOW = 5  # steps of a running mean


def draw(result: str) -> str:
    run = json.loads(result)
    body, foot = _proposers(run["figures"], len(run["shapes"]))
    if curve := run["curves"].get("grpo"):
        more, foot = _rewards(curve, foot + 60.0)
        body += more
    return document(WIDTH, foot, body)


def _proposers(figures: list[dict[str, Any]], shapes: int) -> tuple[list[str], float]:
    """A line of dots per proposer, and where they end."""
    each = figures[0]["proposals"] // figures[0]["tasks"]
    body = [text(20, 26, f"Speed over cuBLASLt-AutoTuning of {each} proposals for each of {shapes} held-out shapes", 14)]
    at_x = SPEEDS.left
    for _, name, colour in KINDS:
        body += [dot(at_x, 46, 5, colour), text(at_x + 10, 50, name)]
        at_x += 130
    foot = TOP + ROW * len(figures)
    for tick in TICKS:
        at = SPEEDS.x(tick)
        body += [line(at, TOP - 12, at, foot - 8, dash=tick == 1.0), text(at, TOP - 18, f"{tick:g}x", 11, "middle", FAINT)]
    for place, one in enumerate(figures):
        y = TOP + ROW * place
        body.append(text(SPEEDS.left - 14, y + 4, one["proposer"], 12, "end"))
        body += [dot(SPEEDS.x(exp(one[kind])), y, 5, colour) for kind, _, colour in KINDS]
    return body, foot


def _rewards(curve: list[dict[str, Any]], top: float) -> tuple[list[str], float]:
    """Mean reward of each step with its running mean, and where the drawing ends."""
    rewards = [float(step["reward"]) for step in curve]
    means = [fmean(rewards[max(0, place - WINDOW + 1) : place + 1]) for place in range(len(rewards))]
    low = floor(2 * min(rewards)) / 2
    high = max(ceil(2 * max(rewards)) / 2, low + 0.5)  # rewards may all be the floor
    foot = top + CURVE_HEIGHT

    def y(reward: float) -> float:
        return foot - CURVE_HEIGHT * (reward - low) / (high - low)

    def x(place: int) -> float:
        return LEFT + (RIGHT - LEFT) * place / max(1, len(rewards) - 1)

    body = [text(20, top - 16, f"Mean reward of a group-relative step, and its mean over {WINDOW} steps", 14)]
    for half in range(round(2 * low), round(2 * high) + 1):
        body += [
            line(LEFT, y(half / 2), RIGHT, y(half / 2)),
            text(LEFT - 8, y(half / 2) + 4, f"{half / 2:g}", 11, "end", FAINT),
        ]
    points = [(x(place), y(mean)) for place, mean in enumerate(means)]
    body += [line(x1, y1, x2, y2, OURS, 2.5) for (x1, y1), (x2, y2) in pairwise(points)]
    body += [dot(x(place), y(reward), 3, INK) for place, reward in enumerate(rewards)]
    body += [text(x(place), foot + 18, str(place + 1), 11, "middle", FAINT) for place in range(0, len(rewards), 4)]
    body.append(text((LEFT + RIGHT) / 2, foot + 36, "step", 11, "middle"))
    return body, foot + 50


if __name__ == "__main__":
    main(__doc__, draw)
