"""Runs whose times are known: the analytic prior's, with an error that a policy can learn."""

import functools
from collections.abc import Sequence
from itertools import product

import numpy as np

from cudal2_agent.contract.plan.chip import REFERENCE_CHIPS
from cudal2_agent.contract.records.candidate import Candidate, Origin
from cudal2_agent.contract.records.evaluation import AUTOTUNED
from cudal2_agent.contract.records.task import Arch, GemmTask
from cudal2_agent.policies.schedule.families.registry import families
from cudal2_agent.policies.schedule.optimiser.pool_entry import PoolEntry
from cudal2_agent.policies.schedule.optimiser.schedule_pool import SchedulePool
from cudal2_agent.policies.training.groups import ScheduleGroup, TimedRun, TimedSchedule, group_of
from cudal2_agent.store.store import Store
from tests.doubles.scripted import OBSERVATION, candidate, measured, run_record, step

H200 = REFERENCE_CHIPS[Arch.SM_90A]
SIZES = (64, 128)
SCHEDULES = 24


def true_us(entries: Sequence[PoolEntry], task: GemmTask, share: float = 1.0) -> list[float]:
    """Kernels of `mma_sync`, and those of which many fit on an SM, are better than the analytic prior thinks.

    `share`: of the error.
    """
    pool = _pool(task)
    errors = [-0.6 * (entry.family.name == "mma_sync") - 0.1 * np.log2(1 + entry.work.ctas_per_sm) for entry in entries]
    return [float(us * np.exp(share * error)) for us, error in zip(pool.predict_us(entries), errors, strict=True)]


def drawn_entries(task: GemmTask, count: int = SCHEDULES, seed: int = 0) -> list[PoolEntry]:
    pool = _pool(task)
    places = np.random.default_rng(seed).permutation(len(pool.entries))[:count]
    return [pool.entries[int(place)] for place in places]


@functools.lru_cache(8)
def _pool(task: GemmTask) -> SchedulePool:
    return SchedulePool(families(task.arch), task, H200, 0)


def tasks() -> list[GemmTask]:
    return [GemmTask(m=m, n=n, k=k) for m, n, k in product(SIZES, SIZES, SIZES)]


@functools.cache
def made_groups() -> tuple[ScheduleGroup, ...]:
    """The group of each task, whose schedules were screened in one round."""
    return tuple(_made_group(task) for task in tasks())


def _made_group(task: GemmTask) -> ScheduleGroup:
    entries = drawn_entries(task)
    costs = np.log(true_us(entries, task))
    timed = tuple(TimedSchedule(entry.values, float(cost), False, 1) for entry, cost in zip(entries, costs, strict=True))
    group = group_of(TimedRun(task.shape, task, H200, timed, 1.0))
    assert group is not None
    return group


def record_runs(store: Store, wanted: Sequence[GemmTask] | None = None) -> None:
    """One finished run for each task, whose schedules were screened in one round."""
    for task in wanted if wanted is not None else tasks():
        entries = drawn_entries(task)
        run_id = f"{task.shape}-run"
        store.start_run(run_record(run_id, task=task, chip=H200, status="finished"))
        store.record_observation(run_id, OBSERVATION)
        for index, (entry, time_us) in enumerate(zip(entries, true_us(entries, task), strict=True)):
            evaluation = measured(time_us, baselines=(AUTOTUNED,), effort="screen")
            store.record_step(step(index, run_id=run_id, candidate=written(entry, index), evaluation=evaluation))


def written(entry: PoolEntry, number: int) -> Candidate:
    origin = Origin(policy="schedule", schedule=entry.values)
    return candidate(number).model_copy(update={"origin": origin})
