"""Splits slots between policies by what a run's attempts say of them. Pure; equal seeds give equal splits.

Each policy is an arm of budgeted Thompson sampling over discounted evidence. It has two Beta posteriors: of the probability
that its next candidate succeeds, and of the candidate's cost on a scale from 0 to 1. For every slot both are drawn for every
arm, and the slot goes to the arm with the largest success / cost. A cost c adds c to one parameter and 1 − c to the other,
where the paper draws a Bernoulli variable. Evidence loses half of its weight per HALF_LIFE younger attempts: a better best is
harder to beat, and an arm without slots is tried again.

Source: Xia et al. 2015 (arXiv 1505.00146); discounting as Raj and Kalyani 2017 (arXiv 1707.09727).
"""

import random
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from math import inf
from statistics import median

from cudal2_agent.contract.records.trajectory import Attempt
from cudal2_agent.contract.reward.reward import FLOOR
from cudal2_agent.contract.reward.speedup import TIE

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


MIN_GAIN = 0.01  # share of a measured time; a smaller gain is not worth a slot


def first_tries(attempts: Sequence[Attempt]) -> list[Attempt]:
    """The first attempt of each candidate; no policy chose to measure it again."""
    first: dict[str, Attempt] = {}
    for attempt in attempts:
        first.setdefault(attempt.candidate_id, attempt)
    return list(first.values())


def improved(tries: Sequence[Attempt]) -> list[bool | None]:
    """Whether each was faster than the best before it by MIN_GAIN; None where that is unknown.

    The first that passes is the reference and shows nothing. A predicted time counts only if a model is behind it and nothing
    in the run was measured; it is then no gain if it ties with the best. A time that earned the floor of the reward counts as
    a failure. An attempt that lacks its second witness is no success and no reference.
    """
    executed = any(attempt.time_us is not None for attempt in tries)
    share = 1 - MIN_GAIN if executed else 1 / (1 + TIE)
    best_us = inf
    answers: list[bool | None] = []
    for attempt in tries:
        time_us = attempt.time_us if executed else attempt.modelled_us
        built = attempt.time_us is not None or attempt.predicted_us is not None
        if not built or attempt.reward == FLOOR:
            answers.append(False)
        elif time_us is None or best_us == inf:
            answers.append(None)
        elif attempt.unproved:
            answers.append(None if time_us < best_us * share else False)
        else:
            answers.append(time_us < best_us * share)
        if built and attempt.reward != FLOOR and time_us is not None and not attempt.unproved:
            best_us = min(best_us, time_us)
    return answers


def costs(tries: Sequence[Attempt], candidates_left: int, seconds_left: float | None) -> list[float]:
    """The share of the remaining budget that each attempt would use now: of candidates or of time, whichever is larger.

    If candidates run out first, all attempts cost the same. If time runs out first, each costs its seconds.
    """
    one = 1 / max(candidates_left, 1)
    if seconds_left is None:
        return [one] * len(tries)
    second = 1 / max(seconds_left, 1.0)
    return [max(one, (attempt.seconds or 0.0) * second) for attempt in tries]
