"""The last step of a prediction: a bounded factor that was fitted to what the replay leaves unexplained.

Covered: kernels whose every feature lies inside the range that the factor was fitted on. Of others it is 1.
Not covered: chips whose rates were not fitted.
The factor's logarithm is the sum of binary trees. `python -m benchmarks.emulator.timing_model.fit_correction` fits them.
"""

import math
from collections.abc import Mapping
from dataclasses import dataclass, fields
from functools import cache
from pathlib import Path

import numpy as np

from cudal2_agent.contract.whole_file import whole_file

FITTED = Path(__file__).parent / "correction.npz"
MIN_FACTOR, MAX_FACTOR = 0.5, 2.0
LEAF = -1  # in place of a node's feature


@dataclass(frozen=True)
class Correction:
    """Shape: names, low, high (features,); the others (trees, nodes).

    `low`, `high`: the range of each feature that was fitted on. A node asks whether a feature (`asked`) is at most `limit`, and
    goes on at `left`, else at `right`. The root is node 0. Of a leaf `value` counts, a logarithm.
    """

    names: np.ndarray
    low: np.ndarray
    high: np.ndarray
    asked: np.ndarray
    limit: np.ndarray
    left: np.ndarray
    right: np.ndarray
    value: np.ndarray

    def factor(self, features: Mapping[str, float]) -> float:
        """By what a predicted time is multiplied."""
        values = np.array([features[name] for name in self.names.tolist()])
        if (values < self.low).any() or (values > self.high).any():
            return 1.0
        return min(max(math.exp(float(self.logarithms(values[None])[0])), MIN_FACTOR), MAX_FACTOR)

    def logarithms(self, values: np.ndarray) -> np.ndarray:
        """Shape: values (kernels, features); out (kernels,)."""
        trees = np.arange(len(self.asked))
        places = np.zeros((len(values), len(trees)), dtype=np.intp)
        while ((asked := self.asked[trees, places]) != LEAF).any():
            answers = np.take_along_axis(values, np.maximum(asked, 0), axis=1) <= self.limit[trees, places]
            onward = np.where(answers, self.left[trees, places], self.right[trees, places])
            places = np.where(asked == LEAF, places, onward)
        return np.asarray(self.value[trees, places].sum(axis=1))

    def write(self, path: Path) -> None:
        """Raises: OSError."""
        with whole_file(path) as target, target.open("wb") as file:
            np.savez_compressed(file, **{field.name: getattr(self, field.name) for field in fields(self)})


@cache
def fitted(path: Path = FITTED) -> Correction:
    with np.load(path, allow_pickle=False) as read:
        return Correction(**{field.name: read[field.name] for field in fields(Correction)})
