"""The schedules that a policy chooses from for one task on one chip, with their predicted times."""

import random
from collections import Counter
from collections.abc import Iterator, Sequence
from itertools import combinations
from typing import Any

import numpy as np

from cudal2_agent.contract.plan.chip import Chip
from cudal2_agent.contract.records.candidate import ScheduleValue
from cudal2_agent.contract.records.task import GemmTask
from cudal2_agent.policies.schedule.families.kernel_family import Family
from cudal2_agent.policies.schedule.optimiser.pool_entry import Group, Key, PoolEntry, Values, entry_of, read_entry
from cudal2_agent.policies.schedule.optimiser.pool_prior import ANALYTIC, Prior
from cudal2_agent.policies.schedule.prior import Floats

AxisStep = tuple[str, ScheduleValue]

MAX_OF_FAMILY = 4096  # larger spaces are sampled; neighbours of good schedules reach the rest
MAX_CLIMBS = 16  # times that neighbours and crossings are added, at most
PAIRED_STEPS = 24  # neighbours two axes away; a step along one of them may not be valid
CROSSED = 48  # of the best entries, at most `OF_GROUP` of a group, from which crossings are drawn
OF_GROUP = 4  # so that they are not all alike
CROSSINGS = 512  # drawn before each climb


class SchedulePool:
    """Entries of all families that support the task; `predicted_us[i]` belongs to `entries[i]`.

    Where a space was sampled, neighbours of what the prior expects to be fastest join the entries, and crossings of it, until
    no better ones are found: pools of two seeds begin with other samples and should end with the same best entries.
    """

    def __init__(self, families: Sequence[Family[Any]], task: GemmTask, chip: Chip, seed: int, prior: Prior = ANALYTIC) -> None:
        self.task, self.chip, self.prior = task, chip, prior
        self.families = {family.name: family for family in families if family.supports(task)}
        self.entries = [entry for family in self.families.values() for entry in self._sample(family, seed)]
        self._axes = {name: _axis_values(name, self.entries) for name in self.families}
        # By values: most of the time of a round would go into finding out which schedules are valid.
        self._read: dict[frozenset[object], PoolEntry | None] = {}
        self.predicted_us = self.predict_us(self.entries)
        self._climb(np.random.default_rng(seed))

    def _climb(self, rng: np.random.Generator) -> None:
        """Adds neighbours of the entries that are expected to be fastest, and crossings of good ones, until none is new."""
        if not self.prior.parents or not self.entries:
            return
        known, climbed = {entry.key for entry in self.entries}, set[Key]()
        for _ in range(MAX_CLIMBS):
            ranked = [self.entries[int(place)] for place in np.argsort(self.predicted_us, kind="stable")]
            parents = [entry for entry in ranked[: self.prior.parents] if entry.key not in climbed]
            climbed |= {entry.key for entry in parents}
            found = {near.key: near for parent in parents for near in self.neighbours(parent, rng)}
            found |= {crossed.key: crossed for crossed in self._crossings(ranked, rng)}
            new = [entry for key, entry in found.items() if key not in known]
            if not new:
                return
            known |= {entry.key for entry in new}
            self.entries += new
            self.predicted_us = np.concatenate([self.predicted_us, self.predict_us(new)])

    def _crossings(self, ranked: Sequence[PoolEntry], rng: np.random.Generator) -> Iterator[PoolEntry]:
        """Schedules that have each value from one of two good entries of a family: a way out of where no single step helps."""
        crossed = list(_best_of_groups(ranked))
        for first, second in rng.choice(len(crossed), (CROSSINGS, 2)):
            one, other = crossed[first], crossed[second]
            of_one = rng.random(len(one.values)) < 0.5
            if one.family is other.family and first != second:
                values = zip(one.values.items(), of_one, strict=True)
                entry = self.entry({axis: value if own else other.values[axis] for (axis, value), own in values})
                if entry is not None:
                    yield entry

    def _sample(self, family: Family[Any], seed: int) -> Iterator[PoolEntry]:
        space = list(family.space(self.task, self.chip))
        if len(space) > MAX_OF_FAMILY:
            space = random.Random(seed).sample(space, MAX_OF_FAMILY)
        for schedule in space:
            yield entry_of(family, schedule, self.task, self.chip)

    def predict_us(self, entries: Sequence[PoolEntry]) -> Floats:
        return self.prior.predict_us(entries, self.task, self.chip)

    def entry(self, values: Values) -> PoolEntry | None:
        """The entry of the schedule with these values; None where no family of the pool can write it for the task."""
        # With the types, because 1 == True although they are different values.
        key = frozenset((axis, type(value), value) for axis, value in values.items())
        if key not in self._read:
            self._read[key] = read_entry(self.families, values, self.task, self.chip)
        return self._read[key]

    def entry_today(self, values: Values) -> PoolEntry | None:
        """The same of a schedule of an earlier search, as its family searches it today."""
        entry = self.entry(values)
        return None if entry is None else self.entry(entry.family.as_searched(entry.schedule).values())

    def improved(self, entry: PoolEntry) -> PoolEntry:
        """The entry with the changes of `Family.improved`."""
        schedule = entry.family.improved(entry.schedule, self.task, self.chip)
        return (self.entry(schedule.values()) if schedule != entry.schedule else None) or entry

    def neighbours(self, entry: PoolEntry, rng: np.random.Generator) -> Iterator[PoolEntry]:
        """Valid schedules one step away along one axis, and some that are one step away along two."""
        steps = list(self.steps(entry))
        pairs = [pair for pair in combinations(steps, 2) if pair[0][0] != pair[1][0]]
        size = min(PAIRED_STEPS, len(pairs))
        chosen = [int(i) for i in rng.choice(len(pairs), size, replace=False)] if pairs else []
        for changes in [*((step,) for step in steps), *(pairs[i] for i in chosen)]:
            neighbour = self.entry(entry.values | dict(changes))
            if neighbour is not None:
                yield neighbour

    def steps(self, entry: PoolEntry) -> Iterator[AxisStep]:
        """Single changes: for a number the next smaller and larger value in the pool, for other axes every other value."""
        for axis, value in entry.values.items():
            known = [other for other in self._axes[entry.family.name].get(axis, ()) if other != value]
            if isinstance(value, int) and not isinstance(value, bool):
                numbers = [int(other) for other in known]
                smaller, larger = [x for x in numbers if x < value], [x for x in numbers if x > value]
                known = [*smaller[-1:], *larger[:1]]
            yield from ((axis, other) for other in known)


def _best_of_groups(ranked: Sequence[PoolEntry]) -> Iterator[PoolEntry]:
    """The first entries, at most `OF_GROUP` of a group."""
    seen = Counter[Group]()
    for entry in ranked:
        if seen.total() == CROSSED:
            return
        if seen[entry.group] < OF_GROUP:
            seen[entry.group] += 1
            yield entry


def _axis_values(family: str, entries: Sequence[PoolEntry]) -> dict[str, list[ScheduleValue]]:
    """The values of each axis of a family in the pool, in order."""
    found: dict[str, set[ScheduleValue]] = {}
    for entry in entries:
        if entry.family.name == family:
            for axis, value in entry.values.items():
                found.setdefault(axis, set()).add(value)
    return {axis: sorted(values, key=lambda value: (str(type(value)), value)) for axis, values in found.items()}
