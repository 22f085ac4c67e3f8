"""How a prior orders what was measured: figures on groups, without a GPU.

Only schedules that a run timed are ordered. What a policy would propose beyond these is not judged here.
"""

from collections.abc import Callable, Sequence

import numpy as np

from cudal2_agent.policies.schedule.prior import Floats
from cudal2_agent.policies.training.groups import ScheduleGroup

FIRST_WITHIN = 0.05  # of the best time, for a first proposal
EIGHT, EIGHT_WITHIN = 8, 0.02  # of the best time, for the best of eight

# The scores of a group's measured schedules, lower for better ones.
Ranks = Callable[[ScheduleGroup], Floats]


def judged(groups: Sequence[ScheduleGroup], scores_of: Ranks) -> dict[str, float]:
    """Shares of groups whose first and best of eight are near the best, what they lose in geometric mean, and the mean of
    Spearman's correlation of scores with times.

    Empty where there is no group.
    """
    if not groups:
        return {}
    first, eight = np.array([_lost(group, scores_of(group)) for group in groups]).T
    return {
        "groups": float(len(groups)),
        "first within 5 %": float(np.mean(first <= np.log1p(FIRST_WITHIN))),
        "best of 8 within 2 %": float(np.mean(eight <= np.log1p(EIGHT_WITHIN))),
        "first over best": float(np.exp(first.mean())),
        "best of 8 over best": float(np.exp(eight.mean())),
        "rank correlation": float(np.mean([_correlation(group.costs, scores_of(group)) for group in groups])),
    }


def first_losses(groups: Sequence[ScheduleGroup], scores_of: Ranks) -> Floats:
    """ln of the time of each group's first proposal over its best time. Shape: (groups,)."""
    return np.array([_lost(group, scores_of(group))[0] for group in groups], dtype=np.float64)


def _lost(group: ScheduleGroup, scores: Floats) -> tuple[float, float]:
    """ln of the first, and of the best of eight, over the best."""
    order = np.argsort(scores, kind="stable")
    best = float(group.costs.min())
    return float(group.costs[order[0]]) - best, float(group.costs[order[:EIGHT]].min()) - best


def _correlation(costs: Floats, scores: Floats) -> float:
    """Spearman's; 0 where one of them is constant, or for a single schedule."""
    ranks = np.array([_ranks(costs), _ranks(scores)])
    if ranks.shape[1] < 2 or not ranks.std(axis=1).all():
        return 0.0
    return float(np.corrcoef(ranks)[0, 1])


def _ranks(values: Floats) -> Floats:
    """Ranks from 0; equal values share the mean of theirs."""
    _, places, counts = np.unique(values, return_inverse=True, return_counts=True)
    ranks: Floats = (np.cumsum(counts) - (counts + 1) / 2)[places]
    return ranks
