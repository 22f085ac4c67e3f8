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
    """Logarithm of the paired speedup over cuBLASLt-AutoTuning, smoothly clipped; the floor for anything not verified.

    r = CLIP · tanh(ln(speedup) / CLIP). So a doubling near 1× counts fully, and an outlier cannot dominate a group.
    None where the candidate or the baseline was not measured: a missing time is not a bad time.
    None for a measured candidate that was not written from a schedule, until the second witness confirms it: policies learn
    from rewards, and a time can be gamed. A candidate that the witness refutes is `Wrong` and gets the floor.
    A time under ALARM_RATIO of the roofline is an alarm and gets the floor.
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
    """Whether a time may become a reward: a trusted writer wrote the kernel, or the second witness confirms it."""
    return origin.trusted_writer or (measured.witness is not None and measured.witness.confirms)


def beyond_roofline(measured: Measured, task: GemmTask, chip: Chip) -> bool:
    """Whether the measured time is implausible: far under the time of the arithmetic and one pass over memory.

    The minimum time leaves out launch cost because programmatic launches overlap it.
    """
    floor_us = roofline_us(task, chip) - chip.launch_us
    return median_us(measured.timing) < ALARM_RATIO * floor_us
