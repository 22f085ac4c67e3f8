"""A tuner over the families' schedules in the style of Helion's LFBO search: a random forest proposes, nothing else.

Two forms: without data for any task, whose first round is random, and with a forest trained on sweeps of other shapes. Each
round but a random first one has one half from the whole pool and one half from the neighbours of the three best schedules so
far, both by the probability of being good. In later rounds of the trained form the probabilities of the two forests are added.
At most two schedules of a round have the same family, tile and parts of K.
"""

from collections import Counter
from collections.abc import Collection, Iterator, Sequence
from typing import Any

import numpy as np

from benchmarks.proposals.forest import FeatureColumns, ScheduleForest, features_of
from benchmarks.proposals.sweeps import Sweep, stored_sweeps
from benchmarks.speed.grid import held_out
from cudal2_agent.agent.bench.proposals.arms import BenchArm, MakeArm
from cudal2_agent.contract.errors import UsageError
from cudal2_agent.contract.plan.chip import Chip
from cudal2_agent.contract.records.candidate import Candidate
from cudal2_agent.contract.records.module_task import gemm
from cudal2_agent.contract.records.task import GemmTask
from cudal2_agent.contract.records.trajectory import Observation
from cudal2_agent.policies.schedule.families.kernel_family import Family
from cudal2_agent.policies.schedule.families.registry import families
from cudal2_agent.policies.schedule.optimiser.pool_entry import Key, PoolEntry
from cudal2_agent.policies.schedule.optimiser.schedule_pool import SchedulePool
from cudal2_agent.store.store import Store

PARENTS = 3
SAME_GROUP = 2  # schedules of a round


class TunerPool:
    """The pool of a task with what does not change from round to round: its table, and its costs by the trained forest."""

    def __init__(self, families: Sequence[Family[Any]], task: GemmTask, chip: Chip, seed: int, trained: ScheduleForest | None):
        self.pool, self._seed, self._trained = SchedulePool(families, task, chip, seed), seed, trained
        entries = self.pool.entries
        self._columns = FeatureColumns([features_of(entry, task, chip) for entry in entries]) if entries else None
        self._table = self._columns.table(task, chip, entries) if self._columns else None
        self._known = trained.rank(task, chip, entries) if trained and entries else np.zeros(len(entries))

    def forest(self, tried: Sequence[tuple[PoolEntry, float]]) -> ScheduleForest:
        """Fitted to what was tried."""
        ratios = np.array([ratio for _, ratio in tried])
        sweep = Sweep(self.pool.task, self.pool.chip, [entry for entry, _ in tried], ratios)
        return ScheduleForest([sweep], self._seed, self._columns)

    def ranked(self, own: ScheduleForest | None) -> Iterator[PoolEntry]:
        """The pool by both forests."""
        assert self._table is not None
        cost = self._known if own is None else self._known - own.good(self._table)
        yield from (self.pool.entries[int(place)] for place in np.argsort(cost, kind="stable"))

    def ranked_near(self, near: Sequence[PoolEntry], own: ScheduleForest) -> list[PoolEntry]:
        """Neighbours by both forests."""
        if not near:
            return []
        task, chip = self.pool.task, self.pool.chip
        cost = own.rank(task, chip, near) + (self._trained.rank(task, chip, near) if self._trained else 0.0)
        return [near[int(place)] for place in np.argsort(cost, kind="stable")]


class ForestTuner:
    """`trained`: a forest of other shapes; None for the form without data."""

    reads_code = False
    exhausted = ""

    def __init__(self, families: Sequence[Family[Any]], seed: int = 0, trained: ScheduleForest | None = None) -> None:
        self.name = "lfbo" if trained is None else "lfbo-trained"
        self._families, self._seed, self._trained = tuple(families), seed, trained
        self._known: tuple[GemmTask, Chip, TunerPool] | None = None

    def propose(self, observation: Observation, count: int) -> list[Candidate]:
        """Fewer than `count`, or none, once the pool is exhausted."""
        task = gemm(observation.task, "this arm")
        known = self._pool(task, observation.chip)
        rng = np.random.default_rng([self._seed, observation.seed, observation.round])
        tried = _tried(observation, known.pool)
        keys = {entry.key for entry, _ in tried}
        chosen: dict[Key, PoolEntry] = {}
        groups: Counter[object] = Counter()
        for entry in self._order(known, tried, keys, count, rng):
            if len(chosen) == count:
                break
            if entry.key not in chosen and entry.key not in keys and groups[entry.group] < SAME_GROUP:
                chosen[entry.key] = entry
                groups[entry.group] += 1
        return [entry.family.write(entry.schedule, task) for entry in chosen.values()]

    def _pool(self, task: GemmTask, chip: Chip) -> TunerPool:
        if self._known is None or self._known[:2] != (task, chip):
            self._known = (task, chip, TunerPool(self._families, task, chip, self._seed, self._trained))
        return self._known[2]

    def _order(
        self,
        known: TunerPool,
        tried: Sequence[tuple[PoolEntry, float]],
        keys: set[Key],
        count: int,
        rng: np.random.Generator,
    ) -> Iterator[PoolEntry]:
        pool = known.pool
        if not pool.entries:
            return
        ran = sorted((pair for pair in tried if np.isfinite(pair[1])), key=lambda pair: -pair[1])
        if ran:
            own = known.forest(tried)
            near = {one.key: one for parent, _ in ran[:PARENTS] for one in pool.neighbours(parent, rng) if one.key not in keys}
            yield from known.ranked_near(list(near.values()), own)[: count // 2]
            yield from known.ranked(own)
        elif self._trained is not None:
            yield from known.ranked(None)
        else:
            yield from (pool.entries[int(place)] for place in rng.permutation(len(pool.entries)))


def _tried(observation: Observation, pool: SchedulePool) -> list[tuple[PoolEntry, float]]:
    """The schedules of the run with their speed over AutoTuning, or over one microsecond; not a number where one failed."""
    found = []
    for one in observation.attempts:
        entry = pool.entry(one.schedule) if one.schedule else None
        if entry is not None:
            ratio = one.speedup or (1 / one.time_us if one.time_us else None)
            found.append((entry, np.nan if ratio is None else ratio))
    return found


def other_arms(store: Store, judged: Collection[str]) -> dict[str, MakeArm]:
    """The arms by name, each made where it is asked for. `judged`: shapes whose sweeps teach no arm."""
    return {
        "lfbo": lambda: BenchArm("lfbo", lambda arch, seed: ForestTuner(families(arch), seed)),
        "lfbo-trained": lambda: trained_arm(store, judged),
    }


def trained_arm(store: Store, judged: Collection[str]) -> BenchArm:
    """Raises: UsageError where the store holds no sweep to learn from."""
    forest, note = trained_forest(store, judged)
    return BenchArm("lfbo-trained", lambda arch, seed: ForestTuner(families(arch), seed, forest), note)


def trained_forest(store: Store, judged: Collection[str]) -> tuple[ScheduleForest, str]:
    """The forest of all sweeps but those of judged and held-out shapes, and what it was trained on. Raises: UsageError."""
    kept_back = {*judged, *held_out()}
    sweeps = stored_sweeps(store, lambda task: task.shape not in kept_back)
    if not sweeps:
        raise UsageError("lfbo-trained needs sweeps of other shapes in the store; see `cudal2-agent trajectories import`")
    return ScheduleForest(sweeps), f"{sum(len(one.entries) for one in sweeps)} schedules of {len(sweeps)} tasks"
