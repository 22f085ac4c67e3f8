"""Speedup of a candidate over a baseline, computed from paired samples of the same rounds."""

import random
import statistics
from collections.abc import Sequence
from typing import NamedTuple

from cudal2_agent.contract.base import Record
from cudal2_agent.contract.records.evaluation import AUTOTUNED, MODULE_BASELINES, Evaluation, Measured, Timing

RESAMPLES = 1000
SHORT_US = 20.0  # of the baseline: a product of which clocks do not drift, and launches are a large part
TIE = 0.03  # of the smaller of two predicted times: within it nothing may be concluded from their order


class Speedup(Record):
    """Median of the paired ratios baseline/candidate with its 95 % bootstrap confidence interval; above 1 is faster."""

    baseline: str
    ratio: float
    low: float
    high: float


def paired_speedup(candidate: Timing, baseline: Timing, seed: int = 0) -> Speedup:
    """The speedup with its interval. Raises: ValueError where the two were not sampled in the same rounds."""
    ratios = _ratios(candidate, baseline)
    rng = random.Random(seed)
    medians = sorted(statistics.median(rng.choices(ratios, k=len(ratios))) for _ in range(RESAMPLES))
    return Speedup(
        baseline=baseline.name,
        ratio=statistics.median(ratios),
        low=medians[int(0.025 * RESAMPLES)],
        high=medians[int(0.975 * RESAMPLES) - 1],
    )


def median_us(timing: Timing) -> float:
    return statistics.median(timing.samples_us)


def baseline_of(measured: Measured, name: str) -> Timing | None:
    """The samples of one baseline of the same rounds; None if that baseline was not measured."""
    return next((timing for timing in measured.baselines if timing.name == name), None)


def yardstick_of(measured: Measured) -> Timing | None:
    """The samples of the baseline that counts: cuBLASLt-AutoTuning, of a module the fastest of PyTorch's.

    None where no such baseline was measured.
    """
    if (autotuned := baseline_of(measured, AUTOTUNED)) is not None:
        return autotuned
    return min((each for each in measured.baselines if each.name in MODULE_BASELINES), key=median_us, default=None)


def speedup_that_counts(evaluation: Evaluation) -> float | None:
    """The paired ratio over `yardstick_of`; None where nothing was measured."""
    if not isinstance(evaluation, Measured) or (yardstick := yardstick_of(evaluation)) is None:
        return None
    return paired_ratio(evaluation.timing, yardstick)


def served_ratio(over: float, over_fastest: float) -> float:
    """Speedup over a baseline of what a user gets: the kernel, or the fastest baseline where no kernel is faster.

    `over`, `over_fastest`: of the kernel, over that baseline and over the fastest one. Over the fastest itself, what is not
    faster counts as 1.
    """
    return over / min(over_fastest, 1.0)


def paired_ratio(candidate: Timing, baseline: Timing) -> float:
    """The ratio of `paired_speedup` without its interval, which is cheaper. Raises: ValueError, as `paired_speedup`."""
    return statistics.median(_ratios(candidate, baseline))


def ratio_over(evaluation: Evaluation, baseline: str) -> float | None:
    """The ratio of `speedup_over` without its interval; None where nothing was measured."""
    if not isinstance(evaluation, Measured):
        return None
    timing = baseline_of(evaluation, baseline)
    return None if timing is None else paired_ratio(evaluation.timing, timing)


def speedup_over(measured: Measured, baseline: str) -> Speedup | None:
    """Speedup over one baseline of the same run; None if that baseline was not measured."""
    timing = baseline_of(measured, baseline)
    return None if timing is None else paired_speedup(measured.timing, timing)


class ScreenedTime(NamedTuple):
    """What a short measurement of a candidate gave.

    `time_us`: its median. `speedup`: paired, over the baseline. `overlaps`: whether its launches overlap in a sample, as those
    with programmatic launch do in offline mode.
    """

    time_us: float
    speedup: float
    overlaps: bool


def usual_baseline_us(screened: Sequence[ScreenedTime]) -> float:
    """The median of the baseline's times. Raises: StatisticsError where nothing was screened."""
    return statistics.median(one.time_us * one.speedup for one in screened)


def steady_speedups(screened: Sequence[ScreenedTime]) -> list[float]:
    """The speedups that candidates of one run would have had under equal conditions.

    In general those are the paired ones, in which the drift of clocks cancels. But a launch that waits for the end of the
    one before it has two times, 0.34 µs apart on an H200 and on an H100. It has the shorter one while another process works
    on the GPU, and for about 0.1 s after it. Searches share a GPU by turns, so that one screen in six meets it. At a baseline
    of 2.5 µs the paired speedup of launches that overlap is then 13 % too low, and their own time is right. Clocks do not
    drift in short products, so that their own time counts there, against the baseline's usual one.
    """
    if not screened:
        return []
    usual_us = usual_baseline_us(screened)
    return [usual_us / one.time_us if one.overlaps and usual_us < SHORT_US else one.speedup for one in screened]


def _ratios(candidate: Timing, baseline: Timing) -> list[float]:
    return [b / c for c, b in zip(candidate.samples_us, baseline.samples_us, strict=True)]


def tied(a_us: float, b_us: float) -> bool:
    """Whether two predicted times are too close to be ordered. Unit: microseconds."""
    return abs(a_us - b_us) <= TIE * min(a_us, b_us)
