"""A tuner over the families' schedules in the style of Helion's LFBO search: a random forest proposes, nothing else.

Two forms: without data for any task, whose first round is random, and with a forest trained on sweeps of other shapes. Each
round but a random first one has one half from the whole pool and one half from the neighbours of the three best schedules so
far, both by the probability of being good. In later rounds of the trained form the probabilities of the two forests are added.
At most two schedules of a round have the same family, tile and parts of K.
"""

from collections import Counter
from collections.abc import Iterator, Sequence
from typing import Any

import numpy as np

from benchmarks.proposals.forest import ScheduleForest
from benchmarks.proposals.sweeps import Sweep
from contract.candidate import Candidate
from contract.chip import Chip
from contract.task import GemmTask
from contract.trajectory import Observation
from policies.schedule.families.kernel_family import Family
from policies.schedule.optimiser.schedule_pool import Key, PoolEntry, SchedulePool
from policies.schedule.prior import Floats

PARENTS = 3
SAME_GROUP = 2  # schedules of a round


class ForestTuner:
    """`trained`: a forest of other shapes; None for the form without data."""

    reads_code = False
    exhausted = ""

    def __init__(self, families: Sequence[Family[Any]], seed: int = 0, trained: ScheduleForest | None = None) -> None:
        self.name = "lfbo" if trained is None else "lfbo-trained"
        self._families, self._seed, self._trained = tuple(families), seed, trained
        self._known: tuple[GemmTask, Chip, SchedulePool] | None = None

    def propose(self, observation: Observation, count: int) -> list[Candidate]:
        """Fewer than `count`, or none, once the pool is exhausted."""
        pool = self._pool(observation.task, observation.chip)
        rng = np.random.default_rng([self._seed, observation.seed, observation.round])
        tried = _tried(observation, pool)
        chosen: dict[Key, PoolEntry] = {}
        groups: Counter[object] = Counter()
        for entry in self._order(pool, tried, count, rng):
            if len(chosen) == count:
                break
            fresh = entry.key not in chosen and all(entry.key != one.key for one, _ in tried)
            if fresh and groups[entry.group] < SAME_GROUP:
                chosen[entry.key] = entry
                groups[entry.group] += 1
        return [entry.family.write(entry.schedule, observation.task) for entry in chosen.values()]

    def _pool(self, task: GemmTask, chip: Chip) -> SchedulePool:
        if self._known is None or self._known[:2] != (task, chip):
            self._known = (task, chip, SchedulePool(self._families, task, chip, self._seed))
        return self._known[2]

    def _order(
        self, pool: SchedulePool, tried: Sequence[tuple[PoolEntry, float]], count: int, rng: np.random.Generator
    ) -> Iterator[PoolEntry]:
        forests = [] if self._trained is None else [self._trained]
        if any(np.isfinite(ratio) for _, ratio in tried):
            ratios = np.array([ratio for _, ratio in tried])
            forests.append(ScheduleForest([Sweep(pool.task, pool.chip, [entry for entry, _ in tried], ratios)], self._seed))
        if not forests:
            yield from (pool.entries[int(place)] for place in rng.permutation(len(pool.entries)))
            return
        parents = sorted((pair for pair in tried if np.isfinite(pair[1])), key=lambda pair: -pair[1])[:PARENTS]
        keys = {entry.key for entry, _ in tried}
        near = {one.key: one for parent, _ in parents for one in pool.neighbours(parent, rng) if one.key not in keys}
        yield from _ranked(list(near.values()), forests, pool)[: count // 2]
        yield from _ranked(pool.entries, forests, pool)


def _ranked(entries: Sequence[PoolEntry], forests: Sequence[ScheduleForest], pool: SchedulePool) -> list[PoolEntry]:
    if not entries:
        return []
    cost: Floats = np.sum([forest.rank(pool.task, pool.chip, entries) for forest in forests], axis=0)
    return [entries[int(place)] for place in np.argsort(cost, kind="stable")]


def _tried(observation: Observation, pool: SchedulePool) -> list[tuple[PoolEntry, float]]:
    """The schedules of the run with their speed over AutoTuning, or over one microsecond; not a number where one failed."""
    found = []
    for one in observation.attempts:
        entry = pool.entry(one.schedule) if one.schedule else None
        if entry is not None:
            ratio = one.speedup or (1 / one.time_us if one.time_us else None)
            found.append((entry, np.nan if ratio is None else ratio))
    return found
