"""A random forest that tells good schedules from others, in the manner of likelihood-free Bayesian optimisation.

Source of the method: Song et al. 2022 (arXiv 2206.13035), with expected improvement as utility; Helion's tuner searches so too.
The schedules of a task that are among its fastest quarter are good. Each of them is an example of the class `good`, weighted by
its utility: how much faster it is than the slowest good one. Every schedule, also a good or a failed one, is an example of the
other class with weight 1. The probability of `good` then orders schedules by their expected improvement.
"""

import math
from collections.abc import Mapping, Sequence

import numpy as np
import numpy.typing as npt
from sklearn.ensemble import RandomForestClassifier
from sklearn.feature_extraction import DictVectorizer

from benchmarks.proposals.sweeps import Sweep
from cudal2_agent.contract.plan.chip import Chip
from cudal2_agent.contract.records.task import GemmTask, TimingMode
from cudal2_agent.policies.schedule.optimiser.pool_entry import PoolEntry
from cudal2_agent.policies.schedule.prior import Floats
from cudal2_agent.policies.training.tree_training import utility_of

Table = npt.NDArray[np.float32]

TREES = 100
LEAF = 3  # least examples of a leaf


class FeatureColumns:
    """The columns of a table of schedules: all features of those that it is made from."""

    def __init__(self, named: Sequence[Mapping[str, float | str]]) -> None:
        self._columns = DictVectorizer(sparse=False, dtype=np.float32).fit(named)

    def table(self, task: GemmTask, chip: Chip, entries: Sequence[PoolEntry]) -> Table:
        """The features of entries. Shape: (entries, columns)."""
        found: Table = self._columns.transform([features_of(entry, task, chip) for entry in entries])
        return found


class ScheduleForest:
    """Fitted to the schedules of one task, or of many. `seed`: of the trees. `columns`: else those of these schedules."""

    def __init__(self, sweeps: Sequence[Sweep], seed: int = 0, columns: FeatureColumns | None = None) -> None:
        utilities = np.concatenate([utility_of(np.log(sweep.ratios)) for sweep in sweeps])
        self.columns = columns or columns_of(sweeps)
        table = np.concatenate([self.columns.table(sweep.task, sweep.chip, sweep.entries) for sweep in sweeps])
        good = utilities > 0
        self._forest = RandomForestClassifier(TREES, min_samples_leaf=LEAF, max_features="sqrt", random_state=seed)
        self._forest.fit(
            np.concatenate([table, table[good]]),
            np.concatenate([np.zeros(len(table)), np.ones(int(good.sum()))]),
            np.concatenate([np.ones(len(table)), utilities[good]]),
        )

    def good(self, table: Table) -> Floats:
        """Probability that each is good. Shape: (entries,)."""
        if len(self._forest.classes_) == 1:  # no example was good, or none was not
            return np.zeros(len(table))
        probabilities: Floats = self._forest.predict_proba(table)[:, 1]
        return probabilities

    def rank(self, task: GemmTask, chip: Chip, entries: Sequence[PoolEntry]) -> Floats:
        """A cost of each entry: the lower, the better."""
        return -self.good(self.columns.table(task, chip, entries))


def columns_of(sweeps: Sequence[Sweep]) -> FeatureColumns:
    return FeatureColumns([features_of(entry, sweep.task, sweep.chip) for sweep in sweeps for entry in sweep.entries])


def features_of(entry: PoolEntry, task: GemmTask, chip: Chip) -> Mapping[str, float | str]:
    """Axes, the work that a schedule makes of the task, and the task. Counts are logarithms to base 2."""
    work, family = entry.work, entry.family.name
    features: dict[str, float | str] = {"family": family}
    for axis, value in entry.values.items():
        if axis != "family":
            features[f"{family}.{axis}"] = value if isinstance(value, str) else math.log2(1 + value)
    counts = {
        "tile_m": work.tile[0],
        "tile_n": work.tile[1],
        "tile_k": work.tile[2],
        "stages": work.stages,
        "ctas": work.ctas,
        "ctas_per_sm": work.ctas_per_sm,
        "cluster": work.cluster,
        "k_blocks": work.k_blocks,
        "loaded": work.loaded_bytes,
        "reduced": work.reduced_bytes,
        "waves": work.ctas / (work.ctas_per_sm * chip.sms),
        "task_m": task.m,
        "task_n": task.n,
        "task_k": task.k,
        "operands": task.operand_bytes,
    }
    features |= {name: math.log2(1 + count) for name, count in counts.items()}
    return features | {"server": float(task.mode is TimingMode.SERVER), "layout": task.layout.value}
