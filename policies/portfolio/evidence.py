"""What a run's attempts say about the policies that made them: which candidates were better, and the cost of each. Pure."""

from collections.abc import Sequence
from math import inf

from cudal2_agent.contract.records.trajectory import Attempt
from cudal2_agent.contract.reward.reward import FLOOR
from cudal2_agent.contract.reward.speedup import TIE

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
