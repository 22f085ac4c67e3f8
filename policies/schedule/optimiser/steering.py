"""A diagnosis steers what is tried around a schedule: moves that relieve a finding get a shorter expected time.

The weight of a finding is the maximum share of the time that can be gained. `TRUST` is the share of it that one step is
assumed to gain. After v attempts that made such a step and were no faster, the assumption is divided by 1 + v.
No schedule is excluded.
"""

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from itertools import combinations

import numpy as np

from cudal2_agent.contract.records.diagnosis import Bottleneck, Diagnosis
from cudal2_agent.contract.records.trajectory import Attempt, Observation
from cudal2_agent.policies.schedule.optimiser.pool_entry import Key, PoolEntry
from cudal2_agent.policies.schedule.optimiser.relief import relieves
from cudal2_agent.policies.schedule.optimiser.schedule_pool import AxisStep, SchedulePool
from cudal2_agent.policies.schedule.prior import Floats

TRUST = 0.25  # share of the maximum gain that one step is assumed to gain
NEAR_AXES = 2  # an attempt informs about a step if it differs from the diagnosed schedule in at most this many axes

Tried = Sequence[tuple[Attempt, PoolEntry]]


@dataclass(frozen=True)
class Steering:
    """What a diagnosis asks of the neighbours of the diagnosed schedule.

    `trusted`: bottleneck → its weight, reduced for every attempt that relieved it and was no faster. `relieved`: neighbour
    → the bottlenecks that it relieves, heaviest first.
    """

    candidate_id: str
    trusted: Mapping[Bottleneck, float]
    neighbours: Mapping[Key, PoolEntry]
    relieved: Mapping[Key, tuple[Bottleneck, ...]]

    def main_relief(self, entry: PoolEntry) -> Bottleneck | None:
        """The heaviest bottleneck that an entry relieves; None where it relieves none or is not a neighbour."""
        return next(iter(self.relieved.get(entry.key, ())), None)

    def discount(self, entries: Iterable[PoolEntry]) -> Floats:
        """Factor on the expected time of each entry; 1 where it relieves nothing."""
        shares = [sum(self.trusted[name] for name in self.relieved.get(entry.key, ())) for entry in entries]
        return 1 - TRUST * np.minimum(np.array(shares, dtype=np.float64), 1.0)


def steer(observation: Observation, tried: Tried, pool: SchedulePool) -> Steering | None:
    """None without a diagnosis, or where the diagnosed candidate has no schedule or no bottleneck that an axis relieves."""
    diagnosis, candidate_id = observation.diagnosis, observation.diagnosed
    found = [pair for pair in tried if pair[0].candidate_id == candidate_id]
    if diagnosis is None or candidate_id is None or not found:
        return None
    attempt, parent = found[-1]
    neighbourhood = Neighbourhood(parent, pool)
    relieving_of = {name: neighbourhood.relieving(name) for name in _weights(diagnosis)}
    neighbours = {entry.key: entry for entries in relieving_of.values() for entry in entries}
    if not neighbours:
        return None
    no_faster = [entry for other, entry in tried if _was_no_faster(other, attempt) and _is_near(entry, parent)]
    trusted = {
        name: weight / (1 + sum(relieves(parent, entry, name, pool) for entry in no_faster))
        for name, weight in _weights(diagnosis).items()
    }
    heaviest_first = sorted(trusted, key=lambda name: -trusted[name])
    keys = {name: {entry.key for entry in entries} for name, entries in relieving_of.items()}
    return Steering(
        candidate_id=candidate_id,
        trusted=trusted,
        neighbours=neighbours,
        relieved={key: tuple(name for name in heaviest_first if key in keys[name]) for key in neighbours},
    )


class Neighbourhood:
    """The valid schedules one step away from one, along one axis or two."""

    def __init__(self, parent: PoolEntry, pool: SchedulePool) -> None:
        self._parent, self._pool = parent, pool
        steps = list(pool.steps(parent))
        pairs = (pair for pair in combinations(steps, 2) if pair[0][0] != pair[1][0])
        self._alone = self._entries((step,) for step in steps)
        self._together = self._entries(pairs)

    def relieving(self, bottleneck: Bottleneck) -> list[PoolEntry]:
        """Neighbours that relieve a bottleneck by one step, or by two where neither step does so alone."""
        alone = {steps: entry for steps, entry in self._alone.items() if self._relieves(entry, bottleneck)}
        together = [
            entry
            for (one, other), entry in self._together.items()
            if (one,) not in alone and (other,) not in alone and self._relieves(entry, bottleneck)
        ]
        return [*alone.values(), *together]

    def entries(self) -> list[PoolEntry]:
        return [*self._alone.values(), *self._together.values()]

    def _relieves(self, entry: PoolEntry, bottleneck: Bottleneck) -> bool:
        return relieves(self._parent, entry, bottleneck, self._pool)

    def _entries(self, changes: Iterable[tuple[AxisStep, ...]]) -> dict[tuple[AxisStep, ...], PoolEntry]:
        found = {steps: self._pool.entry(self._parent.values | dict(steps)) for steps in changes}
        return {steps: entry for steps, entry in found.items() if entry is not None}


def _weights(diagnosis: Diagnosis) -> dict[Bottleneck, float]:
    """The weight of every bottleneck; the maximum where several findings name it."""
    weights: dict[Bottleneck, float] = {}
    for finding in diagnosis.findings:
        weights[finding.bottleneck] = max(finding.weight, weights.get(finding.bottleneck, 0.0))
    return weights


def _was_no_faster(other: Attempt, attempt: Attempt) -> bool:
    """Whether another attempt was measured and no faster. `Risk` accounts for failed ones."""
    if other.candidate_id == attempt.candidate_id or other.time_us is None or attempt.time_us is None:
        return False
    return other.time_us >= attempt.time_us


def _is_near(entry: PoolEntry, parent: PoolEntry) -> bool:
    if entry.family.name != parent.family.name:
        return False
    return sum(value != parent.values[axis] for axis, value in entry.values.items()) <= NEAR_AXES
