"""What to try around the best schedules so far: draws among their neighbours."""

from collections.abc import Sequence

import numpy as np

from cudal2_agent.contract.records.task import TimingMode
from cudal2_agent.contract.records.trajectory import Attempt
from cudal2_agent.contract.reward.speedup import ScreenedTime, steady_speedups, usual_baseline_us
from cudal2_agent.policies.schedule.optimiser.acquisition import rank_by_draws
from cudal2_agent.policies.schedule.optimiser.pool_entry import PoolEntry, launched_programmatically
from cudal2_agent.policies.schedule.optimiser.pool_prior import EntryEncoding
from cudal2_agent.policies.schedule.optimiser.risk import Risk
from cudal2_agent.policies.schedule.optimiser.schedule_pool import SchedulePool
from cudal2_agent.policies.schedule.optimiser.surrogate import Surrogate

PARENTS = 3  # the best schedules so far, whose neighbours are tried


def draw_near(
    near: Sequence[PoolEntry],
    count: int,
    pool: SchedulePool,
    encode: EntryEncoding,
    learned: Surrogate,
    risk: Risk,
    rng: np.random.Generator,
) -> list[PoolEntry]:
    """The half around the best: draws among neighbours, by their expected time per working kernel."""
    if not near or count < 1:
        return []
    expected_us = pool.predict_us(near) / (1 - risk(near))
    return [near[index] for index in rank_by_draws(expected_us, encode(near), learned, rng, count)]


def steady_times_us(attempts: Sequence[Attempt], mode: TimingMode) -> dict[str, float]:
    """The measured times by candidate, as if all had been measured under equal conditions (`steady_speedups`).

    Where one lacks its speedup, the times as they were measured. Unit: microseconds.
    """
    timed = [(one, one.time_us) for one in attempts if one.time_us is not None]
    screened = [
        ScreenedTime(time_us, one.speedup, mode is TimingMode.OFFLINE and launched_programmatically(one.schedule))
        for one, time_us in timed
        if one.speedup is not None
    ]
    if not screened or len(screened) < len(timed):
        return {one.candidate_id: time_us for one, time_us in timed}
    usual_us = usual_baseline_us(screened)
    return {one.candidate_id: usual_us / ratio for (one, _), ratio in zip(timed, steady_speedups(screened), strict=True)}


def neighbours_of_best(
    pool: SchedulePool, tried: Sequence[tuple[Attempt, PoolEntry]], rng: np.random.Generator
) -> list[PoolEntry]:
    """Neighbours of the fastest schedules so far, each once."""
    times_us = steady_times_us([attempt for attempt, _ in tried], pool.task.mode)
    timed = [(times_us[attempt.candidate_id], entry) for attempt, entry in tried if attempt.candidate_id in times_us]
    parents = [entry for _, entry in sorted(timed, key=lambda pair: pair[0])[:PARENTS]]
    found = {neighbour.key: neighbour for parent in parents for neighbour in pool.neighbours(parent, rng)}
    return list(found.values())
