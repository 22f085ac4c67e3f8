"""Rows and table of adaptation curves: what arms learn from ever more shapes, judged on shapes that none of them sees."""

from collections.abc import Iterator, Sequence
from functools import partial
from statistics import fmean
from typing import NamedTuple

import numpy as np

from cudal2_agent.policies.schedule.learned.network import Tensors
from cudal2_agent.policies.training.adapting import adapted, scores_of
from cudal2_agent.policies.training.groups import ScheduleGroup
from cudal2_agent.policies.training.judging import judged

FIGURES = ("first within 5 %", "best of 8 within 2 %", "first over best", "best of 8 over best", "rank correlation")
AdaptationRow = dict[str, object]


class AdaptationArm(NamedTuple):
    """`start`: the weights that it trains on with, None for new ones. `groups`: the same tasks in every arm, in one order."""

    name: str
    start: Tensors | None
    groups: Sequence[ScheduleGroup]


def rows_of(
    base_name: str,
    base: Tensors,
    arms: Sequence[AdaptationArm],
    counts: Sequence[int],
    seed: int,
    judges: Sequence[ScheduleGroup] = (),
) -> Iterator[AdaptationRow]:
    """A row for the analytic prior, for the policy without adaptation, and for each arm and number of shapes.

    The seed draws the order of the shapes. `judges` are other shapes, by which every row is judged. Without them, rows are
    judged by the shapes behind the largest number, in the first arm's measurements.
    """
    order = [int(place) for place in np.random.default_rng(seed).permutation(len(arms[0].groups))]
    tested = list(judges) or [arms[0].groups[place] for place in order[max(counts) :]]
    yield _row("analytic prior", 0, seed, judged(tested, lambda group: group.prior))
    yield _row(base_name, 0, seed, judged(tested, partial(scores_of, base)))
    for count in counts:
        for arm in arms:
            weights = adapted(arm.start, [arm.groups[place] for place in order[:count]], seed)
            yield _row(arm.name, count, seed, judged(tested, partial(scores_of, weights)))


def table(rows: Sequence[AdaptationRow]) -> str:
    """Means over the seeds, as a page shows them: a seed has few shapes to judge by, so that medians of shares are steps."""
    lines = [f"| arm | shapes | {' | '.join(FIGURES)} |", f"|---|---|{'---|' * len(FIGURES)}"]
    for arm, shapes in dict.fromkeys((str(row["arm"]), int(str(row["shapes"]))) for row in rows):
        of_arm = [row for row in rows if (row["arm"], row["shapes"]) == (arm, shapes)]
        means = [fmean(float(str(row[name])) for row in of_arm) for name in FIGURES]
        cells = [f"{value:.0%}" if name.endswith("%") else f"{value:.3f}" for name, value in zip(FIGURES, means, strict=True)]
        lines.append(f"| {arm} | {shapes or '-'} | {' | '.join(cells)} |")
    return "\n".join(lines)


def _row(arm: str, shapes: int, seed: int, figures: dict[str, float]) -> AdaptationRow:
    return {"arm": arm, "shapes": shapes, "seed": seed, **{name: round(value, 4) for name, value in figures.items()}}
