"""Speedup of a candidate over a baseline, computed from paired samples of the same rounds."""

import random
import statistics

from contract.base import Record
from contract.evaluation import Evaluation, Measured, Timing

RESAMPLES = 1000


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


def _ratios(candidate: Timing, baseline: Timing) -> list[float]:
    return [b / c for c, b in zip(candidate.samples_us, baseline.samples_us, strict=True)]
