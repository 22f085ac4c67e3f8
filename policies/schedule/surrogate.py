"""What this run's measurements say about schedules not yet tried: a Gaussian process over the prior's error.

The process models ln(measured / predicted), so that with no data it is the prior, and with data the prior's mistakes on
this task and chip are learned from and carried to similar schedules.
"""

import math
from collections.abc import Sequence

import numpy as np

from policies.schedule.gaussian_process import GaussianProcess
from policies.schedule.prior import Floats

FAILURE_PENALTY = math.log(2.0)  # a schedule that failed counts as twice the worst error measured


class Surrogate:
    """Fitted on the log ratios of measured to predicted time of tried schedules; None marks one that failed."""

    def __init__(self, features: Floats, log_ratios: Sequence[float | None]) -> None:
        measured = [ratio for ratio in log_ratios if ratio is not None]
        self._bias = float(np.median(measured)) if measured else 0.0
        failed = max(measured, default=0.0) + FAILURE_PENALTY
        targets = np.array([failed if ratio is None else ratio for ratio in log_ratios])
        self._process = GaussianProcess(features, targets - self._bias)

    def predict(self, features: Floats) -> tuple[Floats, Floats]:
        """Mean and deviation of the log ratio of measured to predicted time."""
        mean, deviation = self._process.predict(features)
        return mean + self._bias, deviation

    def draw(self, features: Floats, count: int, rng: np.random.Generator) -> Floats:
        """Joint draws of the log ratio. Shape: (count, entries)."""
        draws: Floats = self._process.draw(features, count, rng) + self._bias
        return draws
