"""What this run's measurements say about schedules not yet tried: a Gaussian process over the error of the prior.

The process models ln(measured / predicted). Without data it equals the prior. With data it learns the prior's error on this
task and chip, and applies it to similar schedules.
"""

import numpy as np

from cudal2_agent.policies.schedule.optimiser.gaussian_process import GaussianProcess
from cudal2_agent.policies.schedule.prior import Floats


class Surrogate:
    """Fitted on the log ratios of measured to predicted time of at least one schedule."""

    def __init__(self, features: Floats, log_ratios: Floats) -> None:
        self._bias = float(np.median(log_ratios))
        self._process = GaussianProcess(features, log_ratios - self._bias)

    def predict(self, features: Floats) -> tuple[Floats, Floats]:
        """Mean and deviation of the log ratio of measured to predicted time."""
        mean, deviation = self._process.predict(features)
        return mean + self._bias, deviation

    def draw(self, features: Floats, count: int, rng: np.random.Generator) -> Floats:
        """Joint draws of the log ratio. Shape: (count, entries)."""
        draws: Floats = self._process.draw(features, count, rng) + self._bias
        return draws
