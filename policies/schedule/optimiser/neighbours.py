"""What to try around the best schedules so far: draws among their neighbours, some favoured by a diagnosis."""

import copy
from collections.abc import Sequence

import numpy as np

from cudal2_agent.contract.records.diagnosis import Bottleneck
from cudal2_agent.contract.records.task import TimingMode
from cudal2_agent.contract.records.trajectory import Attempt
from cudal2_agent.contract.reward.speedup import ScreenedTime, steady_speedups, usual_baseline_us
from cudal2_agent.policies.schedule.optimiser.acquisition import rank_by_draws
from cudal2_agent.policies.schedule.optimiser.pool_entry import Key, PoolEntry, launched_programmatically
from cudal2_agent.policies.schedule.optimiser.pool_prior import EntryEncoding
from cudal2_agent.policies.schedule.optimiser.risk import Risk
from cudal2_agent.policies.schedule.optimiser.schedule_pool import SchedulePool
from cudal2_agent.policies.schedule.optimiser.steering import Steering
from cudal2_agent.policies.schedule.optimiser.surrogate import Surrogate

PARENTS = 3  # the best schedules so far, whose neighbours are tried

Pick = tuple[PoolEntry, Bottleneck | None]  # an entry, and the bottleneck that it was chosen to relieve


class NeighbourDraws:
    """Draws among the neighbours of good schedules."""

    def __init__(
        self, pool: SchedulePool, encode: EntryEncoding, learned: Surrogate, risk: Risk, rng: np.random.Generator
    ) -> None:
        self._pool, self._encode, self._learned, self._risk, self._rng = pool, encode, learned, risk, rng

    def plain(self, entries: Sequence[PoolEntry], count: int) -> list[Pick]:
        return [(entry, None) for entry in self._draw(entries, count, self._rng)]

    def steered(self, entries: Sequence[PoolEntry], count: int, steering: Steering) -> list[Pick]:
        """Draws that favour entries which relieve. Those that the plain draws also take do not count as chosen to relieve."""
        plain = {entry.key for entry in self._draw(entries, count, copy.deepcopy(self._rng))}
        favoured = self._draw(entries, count, self._rng, steering)
        return [(entry, None if entry.key in plain else steering.main_relief(entry)) for entry in favoured]

    def _draw(
        self, entries: Sequence[PoolEntry], count: int, rng: np.random.Generator, steering: Steering | None = None
    ) -> list[PoolEntry]:
        if not entries or count < 1:
            return []
        expected_us = self._pool.predict_us(entries) / (1 - self._risk(entries))
        favoured_us = expected_us * steering.discount(entries) if steering else expected_us
        return [entries[index] for index in rank_by_draws(favoured_us, self._encode(entries), self._learned, rng, count)]


def choose(
    draws: NeighbourDraws, near: Sequence[PoolEntry], keys: set[Key], count: int, steering: Steering | None
) -> list[Pick]:
    """The half around the best. A diagnosis adds neighbours that relieve its findings, and favours them."""
    if steering is None:
        return draws.plain(near, count)
    relieving = [entry for entry in steering.neighbours.values() if entry.key not in keys]
    return draws.steered(list({entry.key: entry for entry in (*near, *relieving)}.values()), count, steering)


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
