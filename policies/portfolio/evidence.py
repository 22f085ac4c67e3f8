"""What a run's attempts say about the policies that made them: which candidates were better, and what each cost. Pure."""

from collections.abc import Sequence
from math import inf

from contract.reward import FLOOR
from contract.trajectory import Attempt

LEAST_GAIN = 0.01  # of the time; less than this is not worth a slot


def first_tries(attempts: Sequence[Attempt]) -> list[Attempt]:
    """Each candidate's first attempt: measuring it again was no policy's choice."""
    first: dict[str, Attempt] = {}
    for attempt in attempts:
        first.setdefault(attempt.candidate_id, attempt)
    return list(first.values())


def improved(tries: Sequence[Attempt]) -> list[bool | None]:
    """Whether each was better than the best known before it, by LEAST_GAIN; None where that cannot be said.

    The first that passes sets the mark and shows nothing. A predicted time counts only where a schedule is behind it (for
    free code it is a floor) and nothing in the run was measured. A time that earned the reward's floor is a trick. One
    that lacks its second witness is no success and sets no mark.
    """
    executed = any(attempt.time_us is not None for attempt in tries)
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
            answers.append(None if time_us < best_us * (1 - LEAST_GAIN) else False)
        else:
            answers.append(time_us < best_us * (1 - LEAST_GAIN))
        if built and attempt.reward != FLOOR and time_us is not None and not attempt.unproved:
            best_us = min(best_us, time_us)
    return answers


def costs(tries: Sequence[Attempt], candidates_left: int, seconds_left: float | None) -> list[float]:
    """The share that each would take today of what is left: of the candidates or of the time, whichever is larger.

    So where candidates run out first all cost the same, and where time runs out first they cost their seconds.
    """
    one = 1 / max(candidates_left, 1)
    if seconds_left is None:
        return [one] * len(tries)
    second = 1 / max(seconds_left, 1.0)
    return [max(one, (attempt.seconds or 0.0) * second) for attempt in tries]
