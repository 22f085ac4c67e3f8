"""A diagnosis steers what is tried around a schedule: moves that relieve a finding are thought faster, none is excluded.

A finding's weight is the most that could be won. How much of it one step wins is not known; `TRUST` is the share assumed, and
every attempt that made such a step in vain halves, thirds, quarters … what is assumed of the next.
"""

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from itertools import combinations

import numpy as np

from contract.diagnosis import Bottleneck, Diagnosis
from contract.trajectory import Attempt, Observation
from policies.schedule.prior import Floats
from policies.schedule.search.pool import Entry, Key, Pool, Step
from policies.schedule.search.relief import relieves

TRUST = 0.25  # of the time that could be won at most, the share that one step is assumed to win
NEAR_AXES = 2  # an attempt tells of a step where it differs from the diagnosed schedule in no more axes

Tried = Sequence[tuple[Attempt, Entry]]


@dataclass(frozen=True)
class Steering:
    """What a diagnosis asks of the neighbours of the schedule it is of.

    `trusted`: bottleneck → its weight, less for every attempt that tried to relieve it in vain. `relieved`: neighbour →
    the bottlenecks that it relieves, heaviest first.
    """

    candidate_id: str
    trusted: Mapping[Bottleneck, float]
    neighbours: Mapping[Key, Entry]
    relieved: Mapping[Key, tuple[Bottleneck, ...]]

    def main_relief(self, entry: Entry) -> Bottleneck | None:
        """The heaviest bottleneck that an entry relieves; None where it relieves none, or is no neighbour."""
        return next(iter(self.relieved.get(entry.key, ())), None)

    def discount(self, entries: Iterable[Entry]) -> Floats:
        """Factor on the expected time of each entry: 1 where it relieves nothing."""
        shares = [sum(self.trusted[name] for name in self.relieved.get(entry.key, ())) for entry in entries]
        return 1 - TRUST * np.minimum(np.array(shares, dtype=np.float64), 1.0)


def steer(observation: Observation, tried: Tried, pool: Pool) -> Steering | None:
    """None where nothing was diagnosed, or what was diagnosed has no schedule or no bottleneck that an axis relieves."""
    diagnosis, candidate_id = observation.diagnosis, observation.diagnosed
    found = [pair for pair in tried if pair[0].candidate_id == candidate_id]
    if diagnosis is None or candidate_id is None or not found:
        return None
    attempt, parent = found[-1]
    around = Neighbourhood(parent, pool)
    relieving_of = {name: around.relieving(name) for name in _weights(diagnosis)}
    neighbours = {entry.key: entry for entries in relieving_of.values() for entry in entries}
    if not neighbours:
        return None
    in_vain = [entry for other, entry in tried if _told_nothing_better(other, attempt) and _is_near(entry, parent)]
    trusted = {
        name: weight / (1 + sum(relieves(parent, entry, name, pool) for entry in in_vain))
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
    """The valid schedules that differ from one in a step along one axis, or along two."""

    def __init__(self, parent: Entry, pool: Pool) -> None:
        self._parent, self._pool = parent, pool
        steps = list(pool.steps(parent))
        pairs = (pair for pair in combinations(steps, 2) if pair[0][0] != pair[1][0])
        self._alone = self._entries((step,) for step in steps)
        self._together = self._entries(pairs)

    def relieving(self, bottleneck: Bottleneck) -> list[Entry]:
        """Neighbours that relieve a bottleneck by one step; by two, where neither of them does alone."""
        alone = {steps: entry for steps, entry in self._alone.items() if self._relieves(entry, bottleneck)}
        together = [
            entry
            for (one, other), entry in self._together.items()
            if (one,) not in alone and (other,) not in alone and self._relieves(entry, bottleneck)
        ]
        return [*alone.values(), *together]

    def entries(self) -> list[Entry]:
        return [*self._alone.values(), *self._together.values()]

    def _relieves(self, entry: Entry, bottleneck: Bottleneck) -> bool:
        return relieves(self._parent, entry, bottleneck, self._pool)

    def _entries(self, changes: Iterable[tuple[Step, ...]]) -> dict[tuple[Step, ...], Entry]:
        found = {steps: self._pool.entry(self._parent.values | dict(steps)) for steps in changes}
        return {steps: entry for steps, entry in found.items() if entry is not None}


def _weights(diagnosis: Diagnosis) -> dict[Bottleneck, float]:
    """The weight of every bottleneck; of several findings of one, the heaviest's."""
    weights: dict[Bottleneck, float] = {}
    for finding in diagnosis.findings:
        weights[finding.bottleneck] = max(finding.weight, weights.get(finding.bottleneck, 0.0))
    return weights


def _told_nothing_better(other: Attempt, attempt: Attempt) -> bool:
    """Whether another attempt was no faster; one that failed is judged by its risk instead."""
    if other.candidate_id == attempt.candidate_id or other.time_us is None or attempt.time_us is None:
        return False
    return other.time_us >= attempt.time_us


def _is_near(entry: Entry, parent: Entry) -> bool:
    if entry.family.name != parent.family.name:
        return False
    return sum(value != parent.values[axis] for axis, value in entry.values.items()) <= NEAR_AXES
