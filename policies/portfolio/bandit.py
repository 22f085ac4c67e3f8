"""Splits slots between arms by budgeted Thompson sampling over discounted evidence. Pure; equal seeds give equal splits.

Each arm has two Beta posteriors: of the probability that its next candidate succeeds, and of the candidate's cost on a
scale from 0 to 1. For every slot both are drawn for every arm, and the slot goes to the arm with the largest success / cost.
A cost c adds c to one parameter and 1 − c to the other, where the paper draws a Bernoulli variable. Evidence loses half of
its weight per HALF_LIFE younger attempts: a better best is harder to beat, and an arm without slots is tried again.

Source: Xia et al. 2015 (arXiv 1505.00146); discounting as Raj and Kalyani 2017 (arXiv 1707.09727).
"""

import random
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from statistics import median

HALF_LIFE = 48  # attempts; half a run of 96
SUCCESS_PRIOR = (1.0, 9.0)  # most candidates are no better than the best
COST_PRIOR = (1.0, 1.0)


@dataclass(frozen=True)
class Pull:
    """One candidate of an arm. `success`: None where it is unknown. `cost`: in any unit, the same for all."""

    arm: str
    success: bool | None
    cost: float


@dataclass(frozen=True)
class Posterior:
    """Parameters of an arm's two Beta distributions."""

    success: tuple[float, float]
    cost: tuple[float, float]

    def draw(self, rng: random.Random) -> float:
        """A draw of success / cost."""
        return rng.betavariate(*self.success) / max(rng.betavariate(*self.cost), 1e-9)


def posteriors(arms: Sequence[str], pulls: Sequence[Pull], missing: Mapping[str, int]) -> dict[str, Posterior]:
    """The posterior of each arm. `missing`: candidates that an arm was asked for and did not write, as failures without cost.

    The cost scale ends at the median cost of the most expensive arm, so that one slow candidate does not level all others.
    """
    weights = [0.5 ** (age / HALF_LIFE) for age in range(len(pulls) - 1, -1, -1)]
    weighed = {arm: [(pull, w) for pull, w in zip(pulls, weights, strict=True) if pull.arm == arm] for arm in arms}
    max_cost = max((median(pull.cost for pull, _ in own) for own in weighed.values() if own), default=1.0)
    return {arm: _posterior(own, max_cost, missing.get(arm, 0)) for arm, own in weighed.items()}


def split(posterior: Mapping[str, Posterior], count: int, minimum: int, rng: random.Random) -> dict[str, int]:
    """`count` slots by arm, in the order of the arms; at least `minimum` each where there are enough for all."""
    sure = minimum if count >= minimum * len(posterior) else 0
    slots = Counter(dict.fromkeys(posterior, sure))
    for _ in range(count - sure * len(posterior)):
        drawn = {arm: own.draw(rng) for arm, own in posterior.items()}
        slots[max(drawn, key=drawn.__getitem__)] += 1
    return dict(slots)


def _posterior(own: Sequence[tuple[Pull, float]], max_cost: float, missing: int) -> Posterior:
    (won, lost), (spent, spared) = SUCCESS_PRIOR, COST_PRIOR
    for pull, weight in own:
        cost = min(pull.cost / max_cost, 1.0)
        spent += weight * cost
        spared += weight * (1 - cost)
        if pull.success is not None:
            won += weight * pull.success
            lost += weight * (not pull.success)
    return Posterior(success=(won, lost + missing), cost=(spent, spared))
