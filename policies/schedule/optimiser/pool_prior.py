"""What a prior is to a search: the predicted times of schedules, which of them err alike, and schedules as points."""

import math
from collections.abc import Callable, Sequence
from typing import NamedTuple, Protocol

import numpy as np

from cudal2_agent.contract.plan.chip import Chip
from cudal2_agent.contract.records.task import GemmTask
from cudal2_agent.policies.schedule.optimiser.pool_entry import PoolEntry
from cudal2_agent.policies.schedule.prior import Floats, predict_many_us


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


class Crowding(NamedTuple):
    """Factors on the predicted time of a schedule, for each earlier one of its group and of its family."""

    group: float
    family: float


class EntryEncoding(Protocol):
    """Entries as points for a process that learns from their times. `fitted`: the points of a pool's entries, in order."""

    @property
    def fitted(self) -> Floats: ...

    def __call__(self, entries: Sequence[PoolEntry]) -> Floats:
        """Shape: (entries, features)."""
        ...


class Prior(Protocol):
    """Times before anything was measured.

    `parents`: the fastest entries of a pool whose neighbours it wants to see, beside crossings of good ones; 0: neither.
    `precedent_limit`: schedules that led other shapes are tried up to so many times its best time. `second_opinions`:
    what a first round asks too.
    """

    name: str
    crowding: Crowding
    parents: int
    precedent_limit: float
    second_opinions: "tuple[SecondOpinion, ...]"

    def predict_us(self, entries: Sequence[PoolEntry], task: GemmTask, chip: Chip) -> Floats:
        """Unit: microseconds."""
        ...

    def encoding(self, entries: Sequence[PoolEntry], task: GemmTask, chip: Chip) -> EntryEncoding:
        """The encoding of a pool's entries, of which there is at least one."""
        ...


class Judge(Protocol):
    """Whatever orders entries: lower for better ones. Shape: (entries,)."""

    def __call__(self, entries: Sequence[PoolEntry], task: GemmTask, chip: Chip) -> Floats: ...


class SecondOpinion(NamedTuple):
    """A judge of another kind, which errs on other schedules than the prior does.

    It names its `share` of a first round: the best of the `among` schedules that the prior expects to be fastest, of all where
    that is None. `unlike`: of groups that nobody named before it, and of each the one that the prior expects to be fastest.
    """

    judge: Judge
    share: float
    among: int | None = None
    unlike: bool = False


class AnalyticPrior:
    """`policies.schedule.prior`, for chips and tasks of which nothing was learned."""

    name = "analytic"
    crowding = Crowding(group=1.15, family=1.04)
    parents = 0
    precedent_limit = math.inf
    second_opinions: tuple[SecondOpinion, ...] = ()

    def predict_us(self, entries: Sequence[PoolEntry], task: GemmTask, chip: Chip) -> Floats:
        return predict_many_us([entry.work for entry in entries], task, chip)

    def encoding(self, entries: Sequence[PoolEntry], task: GemmTask, chip: Chip) -> EntryEncoding:  # noqa: ARG002
        return Encoding(entries)


ANALYTIC: Prior = AnalyticPrior()


class RatedPrior(AnalyticPrior):
    """The analytic prior with the rates of `rated`, which were fitted on the chip, in place of those that are expected."""

    name = "analytic, fitted rates"

    def __init__(self, rated: Chip) -> None:
        self._rated = rated

    def predict_us(self, entries: Sequence[PoolEntry], task: GemmTask, chip: Chip) -> Floats:  # noqa: ARG002
        return super().predict_us(entries, task, self._rated)


# The prior for a task on a chip.
PriorOf = Callable[[GemmTask, Chip], Prior]
