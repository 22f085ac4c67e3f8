"""Which schedules to try next: the prior's best, made diverse, or draws from a surrogate of the measured times.

Half of the draws are among the neighbours of the best schedules so far.
"""

from collections import Counter
from collections.abc import Iterator, Sequence

import numpy as np

from cudal2_agent.contract.records.task import TimingMode
from cudal2_agent.contract.records.trajectory import Attempt
from cudal2_agent.contract.reward.speedup import ScreenedTime, steady_speedups, usual_baseline_us
from cudal2_agent.policies.schedule.optimiser.pool_entry import PoolEntry, launched_programmatically
from cudal2_agent.policies.schedule.optimiser.pool_prior import Crowding, EntryEncoding
from cudal2_agent.policies.schedule.optimiser.schedule_pool import SchedulePool
from cudal2_agent.policies.schedule.optimiser.surrogate import Risk, Surrogate
from cudal2_agent.policies.schedule.prior import Floats

SHORTLIST = 128  # schedules that a joint draw covers


def rank_by_prior(
    entries: Sequence[PoolEntry], predicted_us: Floats, tried: Sequence[PoolEntry], crowding: Crowding
) -> Iterator[PoolEntry]:
    """Entries, fastest predicted first; each is penalised for similar ones that were tried or ranked before it."""
    groups = {group: number for number, group in enumerate(dict.fromkeys(entry.group for entry in entries))}
    names = sorted({entry.family.name for entry in entries})
    group_of = np.array([groups[entry.group] for entry in entries], dtype=np.intp)
    family_of = np.array([names.index(entry.family.name) for entry in entries], dtype=np.intp)
    seen_groups, seen_families = Counter(entry.group for entry in tried), Counter(entry.family.name for entry in tried)
    group_crowd = np.array([seen_groups[group] for group in groups], dtype=np.float64)
    family_crowd = np.array([seen_families[name] for name in names], dtype=np.float64)
    left = predicted_us.copy()
    for _ in range(len(entries)):
        penalty = crowding.group ** group_crowd[group_of] * crowding.family ** family_crowd[family_of]
        best = int(np.argmin(left * penalty))
        left[best] = np.inf
        group_crowd[group_of[best]] += 1
        family_crowd[family_of[best]] += 1
        yield entries[best]


def rank_by_draws(
    predicted_us: Floats, features: Floats, surrogate: Surrogate, rng: np.random.Generator, count: int
) -> list[int]:
    """At most `count` indices, each the fastest in one joint draw of all times (Thompson sampling).

    The draws cover a shortlist: the schedules with the lowest optimistic time.
    """
    mean, deviation = surrogate.predict(features)
    optimistic = np.log(predicted_us) + mean - deviation
    shortlist = np.argsort(optimistic, kind="stable")[:SHORTLIST]
    draws = np.log(predicted_us[shortlist]) + surrogate.draw(features[shortlist], count, rng)
    chosen: list[int] = []
    for draw in draws[: len(shortlist)]:
        draw[chosen] = np.inf
        chosen.append(int(np.argmin(draw)))
    return [int(shortlist[index]) for index in chosen]


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
