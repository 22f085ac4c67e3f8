"""The reward of one evaluation."""

import math
from typing import assert_never

from contract.chip import Chip, roofline_us
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
from contract.speedup import median_us, ratio_over
from contract.task import GemmTask

FLOOR = -2.0
CLIP = 1.5
ALARM_RATIO = 0.7


def reward(evaluation: Evaluation, task: GemmTask, chip: Chip) -> float | None:
    """Log of the paired speedup over cuBLASLt-AutoTuning, smoothly clipped; the floor for anything not verified.

    r = CLIP · tanh(ln(speedup) / CLIP), so that a doubling near 1× counts fully and an outlier cannot dominate a group.
    None where the candidate or the baseline was not measured: the absence of a time is not a bad time.
    A time under ALARM_RATIO of the roofline is not a reward but an alarm, and earns the floor.
    """
    match evaluation:
        case Measured():
            ratio = ratio_over(evaluation, AUTOTUNED)
            if beyond_roofline(evaluation, task, chip):
                return FLOOR
            if ratio is None:
                return None
            return CLIP * math.tanh(math.log(ratio) / CLIP)
        case Unmeasured():
            return None
        case Rejected() | CompileFailed() | Crashed() | TimedOut() | Wrong():
            return FLOOR
        case _:
            assert_never(evaluation)


def beyond_roofline(measured: Measured, task: GemmTask, chip: Chip) -> bool:
    """Whether the measured time is too good to be true: far under what arithmetic and a single pass over memory allow.

    Launch cost is left out of the floor because programmatic launches overlap it.
    """
    floor_us = roofline_us(task.flops, task.operand_bytes, chip) - chip.launch_us
    return median_us(measured.timing) < ALARM_RATIO * floor_us
