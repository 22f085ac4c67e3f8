"""Schedules as numbers for a model: their axes, and the work quantities that all families share."""

import math
from collections.abc import Sequence

import numpy as np

from cudal2_agent.policies.schedule.optimiser.pool_entry import PoolEntry
from cudal2_agent.policies.schedule.prior import Floats


class Encoding:
    """Logarithms of counts, 0 or 1 for choices; each column has unit variance over the fitted entries."""

    def __init__(self, entries: Sequence[PoolEntry]) -> None:
        features = [_features(entry) for entry in entries]
        self._columns = {name: column for column, name in enumerate(sorted(set().union(*features)))}
        raw = self._table(features)
        self._mean, deviation = raw.mean(axis=0), raw.std(axis=0)
        self._deviation = np.where(deviation > 0, deviation, 1.0)
        self.fitted: Floats = (raw - self._mean) / self._deviation

    def __call__(self, entries: Sequence[PoolEntry]) -> Floats:
        """Shape: (entries, features). A choice that no fitted entry has leaves its columns at zero before scaling."""
        rows: Floats = (self._table([_features(entry) for entry in entries]) - self._mean) / self._deviation
        return rows

    def _table(self, features: Sequence[dict[str, float]]) -> Floats:
        table = np.zeros((len(features), len(self._columns)))
        for row, named in zip(table, features, strict=True):
            for name, value in named.items():
                if name in self._columns:
                    row[self._columns[name]] = value
        return table


def _features(entry: PoolEntry) -> dict[str, float]:
    """Named features. An axis carries the name of its family, because equal names may differ in meaning."""
    features: dict[str, float] = {}
    for axis, value in entry.values.items():
        if isinstance(value, str | bool):
            features[f"{entry.family.name}.{axis}={value}"] = 1.0
        else:
            features[f"{entry.family.name}.{axis}"] = math.log2(1 + value)
    work = entry.work
    counts = {"m": work.tile[0], "n": work.tile[1], "ctas": work.ctas, "k_blocks": work.k_blocks, "stages": work.stages}
    counts |= {"loaded": work.loaded_bytes, "reduced": work.reduced_bytes, "ctas_per_sm": work.ctas_per_sm}
    return features | {name: math.log2(1 + count) for name, count in counts.items()}
