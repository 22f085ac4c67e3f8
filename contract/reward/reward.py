"""The reward of one evaluation, and the share of the gap to the roofline that it closed."""

import math
from collections.abc import Callable
from typing import assert_never

from cudal2_agent.contract.plan.chip import Chip
from cudal2_agent.contract.records.candidate import Origin
from cudal2_agent.contract.records.evaluation import (
    COMPILED,
    MAX_AUTOTUNE,
    CompileFailed,
    Crashed,
    Evaluation,
    Measured,
    Rejected,
    TimedOut,
    Timing,
    Unmeasured,
    Wrong,
)
from cudal2_agent.contract.records.module_task import ModuleTask, Task
from cudal2_agent.contract.reward.roofline import least_us, roofline_us
from cudal2_agent.contract.reward.speedup import baseline_of, median_us, paired_ratio, yardstick_of

FLOOR = -2.0
CLIP = 1.5
ALARM_RATIO = 0.7
MIN_GAP = 0.02  # medians of repeated measurements differ by up to 1.5 %

# The paired speedup and the baseline's samples to a score.
_Score = Callable[[float, Timing], float | None]


def reward(evaluation: Evaluation, task: Task, chip: Chip, origin: Origin) -> float | None:
    """Logarithm of the paired speedup over `yardstick_of`, smoothly clipped; the floor for anything not verified.

    r = CLIP · tanh(ln(speedup) / CLIP). So a doubling near 1× counts fully, and an outlier cannot dominate a group.
    None where the candidate or the baseline was not measured: a missing time is not a bad time. Of a module, where no compiled
    program was measured beside it: eager PyTorch alone is no yardstick; a note of the evaluation says why it is alone.
    None for an unsound task, whose tests let wrong programs pass.
    None for a measured candidate that was not written from a schedule, until the second witness confirms it: policies learn
    from rewards, and a time can be gamed. A candidate that the witness refutes is `Wrong` and gets the floor.
    A time under ALARM_RATIO of the roofline is an alarm and gets the floor.
    """

    def clipped_logarithm(ratio: float, _: Timing) -> float:
        return CLIP * math.tanh(math.log(ratio) / CLIP)

    return _earned(evaluation, task, chip, origin, clipped_logarithm)


def gap_closed(evaluation: Evaluation, task: Task, chip: Chip, origin: Origin) -> float | None:
    """Share of the gap between the baseline that counts and the roofline that a candidate closed; the floor where not verified.

    (t_ref - t) / (t_ref - roofline), within -1 and 1: 1 at the roofline or under it, 0 at the baseline, negative where slower.
    t_ref is the median of the baseline; t is t_ref divided by the paired speedup, so that the sign is that of `reward`.
    None where the gap is under MIN_GAP of the baseline: it is then mostly noise, or the baseline is at or under the roofline.
    Otherwise None and the floor have the causes they have in `reward`.
    """
    floor_us = roofline_us(task, chip)

    def share(ratio: float, yardstick: Timing) -> float | None:
        reference_us = median_us(yardstick)
        gap_us = reference_us - floor_us
        if gap_us < MIN_GAP * reference_us:
            return None
        return max(-1.0, min(1.0, (reference_us - reference_us / ratio) / gap_us))

    return _earned(evaluation, task, chip, origin, share)


def _earned(evaluation: Evaluation, task: Task, chip: Chip, origin: Origin, score: _Score) -> float | None:
    """The score of a time that counts, the floor for what is not verified or beyond the roofline, None for what is unknown."""
    if isinstance(task, ModuleTask) and task.is_unsound:
        return None
    match evaluation:
        case Measured():
            if beyond_roofline(evaluation, task, chip):
                return FLOOR
            yardstick = yardstick_of(evaluation)
            if yardstick is None or not confirmed(evaluation, origin) or without_compiled(evaluation, task):
                return None
            return score(paired_ratio(evaluation.timing, yardstick), yardstick)
        case Unmeasured():
            return None
        case Rejected() | CompileFailed() | Crashed() | TimedOut() | Wrong():
            return FLOOR
        case _:
            assert_never(evaluation)


def without_compiled(measured: Measured, task: Task) -> bool:
    """Whether a module has no compiled program beside it."""
    return isinstance(task, ModuleTask) and not any(baseline_of(measured, name) for name in (COMPILED, MAX_AUTOTUNE))


def confirmed(measured: Measured, origin: Origin) -> bool:
    """Whether a time may become a reward: a trusted writer wrote the kernel, or the second witness confirms it."""
    return origin.trusted_writer or (measured.witness is not None and measured.witness.confirms)


def beyond_roofline(measured: Measured, task: Task, chip: Chip) -> bool:
    """Whether the measured time is implausible: far under the least time of the task (`least_us`).

    Both times count: the median, and that which the paired speedup says. A few rounds of no time at all could move the second
    one alone, where the number of rounds is even. The minimum time leaves out launch cost because programmatic launches
    overlap it.
    """
    shortest_us = ALARM_RATIO * least_us(task, chip)
    yardstick = yardstick_of(measured)
    implied_us = math.inf if yardstick is None else median_us(yardstick) / paired_ratio(measured.timing, yardstick)
    return min(median_us(measured.timing), implied_us) < shortest_us
