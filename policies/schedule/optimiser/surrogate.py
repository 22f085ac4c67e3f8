"""What this run's times and failures say about schedules not yet tried.

`Surrogate` is a Gaussian process over ln(measured / predicted), the error of the prior. Without data it equals the prior. With
data it learns the prior's error on this task and chip, and applies it to similar schedules. `Risk` is the probability that a
schedule fails, from how often its axis values have failed in this run.
"""

from collections import Counter
from collections.abc import Sequence
from itertools import product

import numpy as np

from cudal2_agent.contract.records.candidate import ScheduleValue
from cudal2_agent.policies.schedule.optimiser.pool_entry import PoolEntry
from cudal2_agent.policies.schedule.prior import Floats

LENGTH_SCALES = (0.25, 0.5, 1.0, 2.0)  # in units of the square root of the number of features
NOISE_SHARES = (0.01, 0.1, 0.5)  # noise variance over signal variance
PRIOR_VARIANCE = 0.05  # of the signal, with the weight of PRIOR_POINTS measurements
PRIOR_POINTS = 2.0
JITTER = 1e-9


class GaussianProcess:
    """Zero mean, Matérn-5/2 kernel. Marginal likelihood selects length scale and noise from grids; the variance is closed form.

    Shape: x (points, features) scaled to about unit variance, y (points,).
    Source: Rasmussen and Williams, Gaussian Processes for Machine Learning, chapters 2 and 5.
    """

    def __init__(self, x: Floats, y: Floats) -> None:
        self._x, self._y = x, y
        distances = _distances(x, x)
        fits = [self._fit(distances, scale, noise) for scale, noise in product(LENGTH_SCALES, NOISE_SHARES)]
        _, self._scale, self._variance, self._factor, self._weights = max(fits, key=lambda fit: fit[0])

    def _fit(self, distances: Floats, scale: float, noise: float) -> tuple[float, float, float, Floats, Floats]:
        """Log likelihood up to a constant, and the parts of the fitted process."""
        scale *= float(np.sqrt(self._x.shape[1]))
        factor: Floats = np.linalg.cholesky(_matern(distances / scale) + noise * np.eye(len(self._y))).astype(np.float64)
        half = np.linalg.solve(factor, self._y)
        weights: Floats = np.linalg.solve(factor.T, half)
        points = len(self._y) + PRIOR_POINTS
        variance = float(half @ half + PRIOR_POINTS * PRIOR_VARIANCE) / points
        likelihood = -0.5 * points * float(np.log(variance)) - float(np.log(np.diag(factor)).sum())
        return likelihood, scale, variance, factor, weights

    def predict(self, x: Floats) -> tuple[Floats, Floats]:
        """Mean and standard deviation at each point, without noise."""
        cross = _matern(_distances(self._x, x) / self._scale)
        explained = (np.linalg.solve(self._factor, cross) ** 2).sum(axis=0)
        return cross.T @ self._weights, np.sqrt(self._variance * np.maximum(1.0 - explained, 0.0))

    def draw(self, x: Floats, count: int, rng: np.random.Generator) -> Floats:
        """Joint draws of the function at all points, without noise. Shape: (count, points)."""
        cross = _matern(_distances(self._x, x) / self._scale)
        half = np.linalg.solve(self._factor, cross)
        covariance = self._variance * (_matern(_distances(x, x) / self._scale) - half.T @ half)
        values, vectors = np.linalg.eigh(covariance + JITTER * np.eye(len(x)))
        root = vectors * np.sqrt(np.maximum(values, 0.0))
        draws: Floats = cross.T @ self._weights + rng.standard_normal((count, len(x))) @ root.T
        return draws


def _distances(a: Floats, b: Floats) -> Floats:
    squares = (a**2).sum(axis=1)[:, None] + (b**2).sum(axis=1) - 2 * a @ b.T
    distances: Floats = np.sqrt(np.maximum(squares, 0.0))
    return distances


def _matern(distances: Floats) -> Floats:
    """Matérn kernel of smoothness 5/2 at distances in length scales."""
    root = np.sqrt(5.0) * distances
    kernel: Floats = (1.0 + root + root**2 / 3.0) * np.exp(-root)
    return kernel


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


PRIOR_SUCCESSES = 2.0  # of every value, before it was tried

Trait = tuple[str, str, ScheduleValue]


class Risk:
    """The risk of a schedule is that of its riskiest value, so that values common to all failures are avoided first.

    Values that every tried schedule shares get the same risk, because no attempt distinguishes them.
    """

    def __init__(self, tried: Sequence[PoolEntry], failed: Sequence[bool]) -> None:
        tries = Counter(trait for entry in tried for trait in _traits(entry))
        failures = Counter(
            trait for entry, has_failed in zip(tried, failed, strict=True) if has_failed for trait in _traits(entry)
        )
        self._rates = {trait: count / (tries[trait] + PRIOR_SUCCESSES) for trait, count in failures.items()}

    def __call__(self, entries: Sequence[PoolEntry]) -> Floats:
        """Probability of failure of each entry, less than 1."""
        if not self._rates:
            return np.zeros(len(entries))
        return np.array([max(self._rates.get(trait, 0.0) for trait in _traits(entry)) for entry in entries])


def _traits(entry: PoolEntry) -> list[Trait]:
    return [(entry.family.name, axis, value) for axis, value in entry.values.items()]
