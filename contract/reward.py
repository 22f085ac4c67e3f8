"""The reward of one evaluation."""

import math
from typing import assert_never

from contract.candidate import Origin
from contract.chip import Chip
from contract.evaluation import (
    AUTOTUNED,
    CompileFailed,
    Crashed,
    Evaluation,
    Measured,
    Rejected,
    TimedOut,
    Unmeasured,
    Wrong,
)
from contract.roofline import roofline_us
from contract.speedup import median_us, ratio_over
from contract.task import GemmTask

FLOOR = -2.0
CLIP = 1.5
ALARM_RATIO = 0.7


def reward(evaluation: Evaluation, task: GemmTask, chip: Chip, origin: Origin) -> float | None:
    """Log of the paired speedup over cuBLASLt-AutoTuning, smoothly clipped; the floor for anything not verified.

    r = CLIP · tanh(ln(speedup) / CLIP), so that a doubling near 1× counts fully and an outlier cannot dominate a group.
    None where the candidate or the baseline was not measured: the absence of a time is not a bad time.
    None also for a measured candidate that no schedule's writer made, until a second witness confirms it: a time may be
    gamed, and what is rewarded is learned. A candidate that the witness refutes is `Wrong` and earns the floor.
    A time under ALARM_RATIO of the roofline is not a reward but an alarm, and earns the floor.
    """
    match evaluation:
        case Measured():
            ratio = ratio_over(evaluation, AUTOTUNED)
            if beyond_roofline(evaluation, task, chip):
                return FLOOR
            if ratio is None or not confirmed(evaluation, origin):
                return None
            return CLIP * math.tanh(math.log(ratio) / CLIP)
        case Unmeasured():
            return None
        case Rejected() | CompileFailed() | Crashed() | TimedOut() | Wrong():
            return FLOOR
        case _:
            assert_never(evaluation)


def confirmed(measured: Measured, origin: Origin) -> bool:
    """Whether a time may become a reward: a trusted writer made the kernel, or a second witness found it right."""
    return origin.trusted_writer or (measured.witness is not None and measured.witness.confirms)


def beyond_roofline(measured: Measured, task: GemmTask, chip: Chip) -> bool:
    """Whether the measured time is too good to be true: far under what arithmetic and a single pass over memory allow.

    Launch cost is left out of the floor because programmatic launches overlap it.
    """
    floor_us = roofline_us(task, chip) - chip.launch_us
    return median_us(measured.timing) < ALARM_RATIO * floor_us
