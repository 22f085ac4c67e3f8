"""The last step of a prediction: a bounded factor that was fitted to what the replay leaves unexplained.

Covered: kernels whose every feature lies inside the range that the factor was fitted on. Of others it is 1.
Not covered: chips whose rates were not fitted.
The factor is a sum of small trees. Every tree asks the same few questions of every kernel, whose answers number its leaves.
"""

import json
import math
from collections.abc import Mapping
from dataclasses import dataclass
from functools import cache
from pathlib import Path

import numpy as np

FITTED = Path(__file__).parent / "correction.json"
MIN_FACTOR, MAX_FACTOR = 0.5, 2.0


@dataclass(frozen=True)
class Correction:
    """Shape: low, high (features,); asked, above (trees, depth); leaves (trees, 2 ** depth), of logarithms.

    `low`, `high`: the range of each feature that was fitted on. A question is whether a feature lies above a threshold.
    """

    names: tuple[str, ...]
    low: np.ndarray
    high: np.ndarray
    asked: np.ndarray
    above: np.ndarray
    leaves: np.ndarray

    def factor(self, features: Mapping[str, float]) -> float:
        """By what a predicted time is multiplied."""
        values = np.array([features[name] for name in self.names])
        if (values < self.low).any() or (values > self.high).any():
            return 1.0
        return min(max(math.exp(float(self.logarithms(values[None])[0])), MIN_FACTOR), MAX_FACTOR)

    def logarithms(self, values: np.ndarray) -> np.ndarray:
        """Shape: values (kernels, features); out (kernels,)."""
        answers = values[:, self.asked] > self.above  # (kernels, trees, depth)
        places = (answers << np.arange(answers.shape[2])).sum(axis=2)
        return np.asarray(self.leaves[np.arange(len(self.leaves)), places].sum(axis=1))


@cache
def fitted(path: Path = FITTED) -> Correction:
    read = json.loads(path.read_text())
    arrays = (np.array(read[name]) for name in ("low", "high", "asked", "above", "leaves"))
    return Correction(tuple(read["names"]), *arrays)
