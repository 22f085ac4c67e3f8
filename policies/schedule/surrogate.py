"""What this run's measurements say about schedules not yet tried: a Gaussian process over the prior's error.

The process models ln(measured / predicted), so that with no data it is the prior, and with data the prior's mistakes on
this task and chip are learned from and carried to similar schedules.
"""

import math
import warnings
from collections.abc import Sequence

import numpy as np
from sklearn.exceptions import ConvergenceWarning  # type: ignore[import-untyped]
from sklearn.feature_extraction import DictVectorizer  # type: ignore[import-untyped]
from sklearn.gaussian_process import GaussianProcessRegressor  # type: ignore[import-untyped]
from sklearn.gaussian_process.kernels import ConstantKernel, Matern, WhiteKernel  # type: ignore[import-untyped]
from sklearn.preprocessing import StandardScaler  # type: ignore[import-untyped]

from policies.schedule.pool import Entry
from policies.schedule.prior import Floats

FAILURE_PENALTY = math.log(2.0)  # a schedule that failed counts as twice the worst error measured


class Encoding:
    """Schedules and their work as numbers: logarithms of counts, 0 or 1 for choices, scaled over the fitted entries."""

    def __init__(self, entries: Sequence[Entry]) -> None:
        self._vectorizer = DictVectorizer(sparse=False)
        self._scaler = StandardScaler()
        self._scaler.fit(self._vectorizer.fit_transform([_features(entry) for entry in entries]))

    def __call__(self, entries: Sequence[Entry]) -> Floats:
        """Shape: (entries, features)."""
        rows: Floats = self._scaler.transform(self._vectorizer.transform([_features(entry) for entry in entries]))
        return rows


def _features(entry: Entry) -> dict[str, str | float]:
    """Axes under their family's name, and the work, which schedules of different families have in common."""
    features: dict[str, str | float] = {}
    for axis, value in entry.values.items():
        plain = str(value) if isinstance(value, str | bool) else math.log2(1 + value)
        features[axis if axis == "family" else f"{entry.family.name}.{axis}"] = plain
    work = entry.work
    counts = {"m": work.tile[0], "n": work.tile[1], "ctas": work.ctas, "k_blocks": work.k_blocks, "stages": work.stages}
    counts |= {"loaded": work.loaded_bytes, "reduced": work.reduced_bytes, "ctas_per_sm": work.ctas_per_sm}
    return features | {name: math.log2(1 + count) for name, count in counts.items()}


class Surrogate:
    """Fitted on the log ratios of measured to predicted time of tried schedules; None marks one that failed."""

    def __init__(self, features: Floats, log_ratios: Sequence[float | None]) -> None:
        measured = [ratio for ratio in log_ratios if ratio is not None]
        self._bias = float(np.mean(measured)) if measured else 0.0
        failed = max(measured, default=0.0) + FAILURE_PENALTY
        targets = np.array([failed if ratio is None else ratio for ratio in log_ratios]) - self._bias
        spread = math.sqrt(features.shape[1])
        kernel = ConstantKernel(0.1, (1e-3, 1.0)) * Matern(spread, (spread / 10, spread * 10), nu=2.5)
        self._process = GaussianProcessRegressor(kernel + WhiteKernel(1e-3, (1e-5, 1e-1)), random_state=0)
        with warnings.catch_warnings():
            # A length scale at its bound is an answer here: the data say little or much about similar schedules.
            warnings.simplefilter("ignore", ConvergenceWarning)
            self._process.fit(features, targets)

    def predict(self, features: Floats) -> tuple[Floats, Floats]:
        """Mean and deviation of the log ratio of measured to predicted time."""
        mean, deviation = self._process.predict(features, return_std=True)
        return mean + self._bias, deviation

    def draw(self, features: Floats, count: int, rng: np.random.Generator) -> Floats:
        """Joint draws of the log ratio. Shape: (count, entries)."""
        mean, covariance = self._process.predict(features, return_cov=True)
        draws: Floats = rng.multivariate_normal(mean, covariance, size=count, method="eigh") + self._bias
        return draws
