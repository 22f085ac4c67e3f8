"""The rates of a chip that make the analytic prior's times those that were measured.

Least squares of ln(measured / predicted), robust against schedules that the prior misjudges, with the rates that the chip came
with as what is expected. Only the rates of `Chip` change: what else the prior knows was measured on the reference chip.
"""

from collections.abc import Sequence
from typing import NamedTuple

import numpy as np

from cudal2_agent.contract.plan.chip import Chip
from cudal2_agent.contract.records.task import GemmTask
from cudal2_agent.contract.reward.roofline import dram_bytes_per_us, tensor_flops_per_us
from cudal2_agent.policies.schedule.families.kernel_family import Work
from cudal2_agent.policies.schedule.prior import Floats, predict_many_us

RATES = ("tensor_tflops", "dram_tbps", "launch_us")
EXPECTED_WITHIN = 0.4  # standard deviation of ln(rate / expected rate): a datasheet's rate may be half as much again off
MODEL_ERROR = 0.2  # standard deviation of the prior's ln(time), alike for the schedules of one task
HUBER = 2.0  # errors above this many deviations count linearly
MAX_CHANGE = np.log(4.0)  # of a rate
STEPS, DIFFERENCE = 25, 1e-3


class TimedWorks(NamedTuple):
    """Schedules of one task with their measured times. Unit: microseconds. Shape: (works,)."""

    task: GemmTask
    works: Sequence[Work]
    times_us: Floats


def fitted_chip(timed: Sequence[TimedWorks], chip: Chip) -> Chip:
    """The chip with fitted rates; the chip itself where nothing was timed.

    Each task counts as one observation, because the prior errs alike for its schedules. No rate is below what a measured
    kernel reached.
    """
    timed = [one for one in timed if len(one.works)]
    if not timed:
        return chip
    change = np.zeros(len(RATES))
    for _ in range(STEPS):
        error, slope = _errors(timed, chip, change)
        deviation = np.abs(error) / MODEL_ERROR
        robust = np.where(deviation > HUBER, HUBER / np.maximum(deviation, 1e-9), 1.0)
        weight = robust * np.concatenate([np.full(len(one.works), 1 / len(one.works)) for one in timed]) / MODEL_ERROR**2
        normal = slope.T @ (weight[:, None] * slope) + np.eye(len(RATES)) / EXPECTED_WITHIN**2
        step = np.linalg.solve(normal, -slope.T @ (weight * error) - change / EXPECTED_WITHIN**2)
        change = np.clip(change + step, -MAX_CHANGE, MAX_CHANGE)
        if np.abs(step).max() < DIFFERENCE:
            break
    return _not_below_reached(timed, _changed(chip, change))


def _errors(timed: Sequence[TimedWorks], chip: Chip, change: Floats) -> tuple[Floats, Floats]:
    """ln(predicted / measured), and its derivatives with respect to the logarithms of the rates."""
    error = _error(timed, _changed(chip, change))
    moved = (_error(timed, _changed(chip, change + DIFFERENCE * unit)) for unit in np.eye(len(RATES)))
    return error, np.stack([(other - error) / DIFFERENCE for other in moved], axis=1)


def _error(timed: Sequence[TimedWorks], chip: Chip) -> Floats:
    predicted = [np.log(predict_many_us(one.works, one.task, chip)) for one in timed]
    error: Floats = np.concatenate(predicted) - np.log(np.concatenate([one.times_us for one in timed]))
    return error


def _changed(chip: Chip, change: Floats) -> Chip:
    rates = {name: getattr(chip, name) * float(np.exp(by)) for name, by in zip(RATES, change, strict=True)}
    return chip.model_copy(update=rates)


def _not_below_reached(timed: Sequence[TimedWorks], chip: Chip) -> Chip:
    """A lower rate would call the times of the fastest kernels implausible."""
    best = [(one.task, float(one.times_us.min())) for one in timed]
    tensor = max(task.flops / time_us for task, time_us in best) / tensor_flops_per_us(chip)
    dram = max(task.operand_bytes / time_us for task, time_us in best) / dram_bytes_per_us(chip)
    rates = {"tensor_tflops": chip.tensor_tflops * max(tensor, 1.0), "dram_tbps": chip.dram_tbps * max(dram, 1.0)}
    return chip.model_copy(update=rates)
