"""What a calibration measures: the shapes in their order; for each, half the best schedules of the prior, half spread ones."""

import json
from collections import Counter
from collections.abc import Iterator, Sequence
from itertools import chain, islice
from pathlib import Path

import numpy as np

from cudal2_agent.contract.plan.chip import Chip
from cudal2_agent.contract.records.candidate import Candidate
from cudal2_agent.contract.records.module_task import gemm
from cudal2_agent.contract.records.task import AccumulatorType, Arch, GemmTask, TimingMode, parse_shape
from cudal2_agent.contract.records.trajectory import Observation
from cudal2_agent.policies.schedule.families.registry import families
from cudal2_agent.policies.schedule.optimiser.acquisition import rank_by_prior
from cudal2_agent.policies.schedule.optimiser.pool_entry import PoolEntry
from cudal2_agent.policies.schedule.optimiser.pool_prior import PriorOf
from cudal2_agent.policies.schedule.optimiser.schedule_pool import SchedulePool
from cudal2_agent.policies.schedule.prior import Floats

SHAPES = Path(__file__).with_name("shapes.json")
# Every fourth shape judges. The list goes through five classes of size in turn, so that each is held back equally often.
HELD_BACK_EVERY = 4
TOO_SLOW = 4.0  # times the best predicted time: slower schedules cost time and say little about which are fast
DRAWN = 512  # schedules among which the spread ones are sought


def calibration_tasks(arch: Arch, mode: TimingMode, accumulate: AccumulatorType) -> list[GemmTask]:
    """In the order in which they are measured. None is a shape that training and benchmarks hold out."""
    shapes = [parse_shape(shape) for shape in json.loads(SHAPES.read_text("utf-8"))]
    return [GemmTask(m=m, n=n, k=k, arch=arch, mode=mode, accumulate=accumulate) for m, n, k in shapes]


def held_back(tasks: list[GemmTask]) -> frozenset[str]:
    """The ids of the tasks that no fit and no training sees."""
    return frozenset(task.id for task in tasks[HELD_BACK_EVERY - 1 :: HELD_BACK_EVERY])


class SpreadSchedules:
    """A policy for one round. It follows from its seed and the observation which schedules it proposes."""

    name = "schedule"
    reads_code = False
    exhausted = ""

    def __init__(self, prior_of: PriorOf, seed: int) -> None:
        self._prior_of, self._seed = prior_of, seed

    def propose(self, observation: Observation, count: int) -> list[Candidate]:
        """Fewer than `count` where the spaces hold fewer. What was tried is not proposed again."""
        task = gemm(observation.task, "calibration")
        seen = {attempt.candidate_id for attempt in observation.attempts}
        found: dict[str, Candidate] = {}
        for entry in self._order(task, observation.chip, count):
            if len(found) == count:
                break
            candidate = entry.family.write(entry.schedule, task)
            if candidate.id not in seen:
                found[candidate.id] = candidate
        return list(found.values())

    def _order(self, task: GemmTask, chip: Chip, count: int) -> Iterator[PoolEntry]:
        prior = self._prior_of(task, chip)
        pool = SchedulePool(families(task.arch), task, chip, self._seed, prior)
        if not pool.entries:
            return iter(())
        best = list(islice(rank_by_prior(pool.entries, pool.predicted_us, [], prior.crowding), (count + 1) // 2))
        limit_us = TOO_SLOW * float(pool.predicted_us.min())
        rest = [entry for entry, us in zip(pool.entries, pool.predicted_us, strict=True) if us <= limit_us]
        rng = np.random.default_rng([self._seed, task.m, task.n, task.k])
        drawn = [rest[int(place)] for place in rng.permutation(len(rest))[:DRAWN]]
        return chain(best, spread(best, drawn))


def spread(chosen: Sequence[PoolEntry], drawn: Sequence[PoolEntry]) -> Iterator[PoolEntry]:
    """Entries of `drawn`, each the farthest from all before it within the family that has had the fewest so far."""
    left = list(range(len(drawn)))
    points, families_of = _resources(drawn), [entry.family.name for entry in drawn]
    apart = np.full(len(drawn), np.inf)
    for point in _resources(chosen):
        apart = np.minimum(apart, np.linalg.norm(points - point, axis=1))
    used: Counter[str] = Counter()
    while left:
        fewest = min(used[families_of[place]] for place in left)
        place = max((one for one in left if used[families_of[one]] == fewest), key=lambda one: apart[one])
        left.remove(place)
        used[families_of[place]] += 1
        apart = np.minimum(apart, np.linalg.norm(points - points[place], axis=1))
        yield drawn[place]


def _resources(entries: Sequence[PoolEntry]) -> Floats:
    """What a schedule takes of a chip, in doublings: tile, stages, CTAs, CTAs per SM, cluster and loaded bytes."""
    works = [entry.work for entry in entries]
    rows = [(*work.tile, work.stages, work.ctas, work.ctas_per_sm, work.cluster, 1 + work.loaded_bytes) for work in works]
    return np.log2(np.array(rows, dtype=np.float64).reshape(-1, 8))
