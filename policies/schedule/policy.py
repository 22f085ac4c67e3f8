"""The schedule policy: proposes written kernels by searching the schedule spaces of the families. No key, no network.

Each part can be replaced alone: the prior (`prior`) and, in `optimiser/`, its correction by a run's measurements
(`surrogate`), the run's failures (`risk`) and the choice of what to try (`acquisition`).
"""

from collections.abc import Callable, Iterator, Sequence
from itertools import chain, islice
from typing import Any

import numpy as np

from cudal2_agent.contract.plan.chip import Chip
from cudal2_agent.contract.records.candidate import Candidate
from cudal2_agent.contract.records.module_task import gemm
from cudal2_agent.contract.records.task import GemmTask, TimingMode
from cudal2_agent.contract.records.trajectory import Attempt, Observation, Precedent
from cudal2_agent.policies.schedule.families.kernel_family import Family
from cudal2_agent.policies.schedule.optimiser.acquisition import (
    draw_near,
    neighbours_of_best,
    rank_by_draws,
    rank_by_prior,
    steady_times_us,
)
from cudal2_agent.policies.schedule.optimiser.library_tile import library_tile, with_tile
from cudal2_agent.policies.schedule.optimiser.pool_entry import Group, Key, PoolEntry, schedule_key
from cudal2_agent.policies.schedule.optimiser.pool_prior import ANALYTIC, EntryEncoding, PriorOf, SecondOpinion
from cudal2_agent.policies.schedule.optimiser.schedule_pool import SchedulePool
from cudal2_agent.policies.schedule.optimiser.surrogate import Risk, Surrogate

# Schedules of earlier runs on similar tasks, the most promising first.
Precedents = Callable[[GemmTask, Chip], Sequence[Precedent]]

FAILED = frozenset({"rejected", "compile_failed", "crashed", "timed_out", "wrong"})
SECOND_OPINION = 4  # smallest first round in which second opinions name the last schedules
MAX_FITTED = 256  # latest timed attempts that the surrogate is fitted to; the cost grows with the cube of their number


class SchedulePolicy:
    """The first round follows the prior, and for one half of it `precedents`: schedules that did well in earlier runs.

    Those of other shapes count only within the prior's `precedent_limit` times its best predicted time.
    Its last schedules are the best by the prior's second opinions, if it has any.
    A server's first round takes all that led offline runs of its own shape.
    Later rounds follow the measured times: half of a round anywhere, half around the best. While none with the tile of
    cuBLASLt's best algorithm was tried, half of a round has it.
    Deterministic in (seed, observation, precedents). It repeats neither a schedule of the run nor a candidate that the
    observation holds.
    """

    name = "schedule"
    reads_code = False
    exhausted = ""  # never set: with exhausted spaces it proposes nothing

    def __init__(
        self,
        families: Sequence[Family[Any]],
        seed: int = 0,
        *,
        precedents: Precedents = lambda *_: (),
        prior_of: PriorOf = lambda *_: ANALYTIC,
    ) -> None:
        self._families = tuple(families)
        self._precedents, self._prior_of = precedents, prior_of
        self._seed = seed
        self._cached: tuple[GemmTask, Chip, SchedulePool, EntryEncoding | None] | None = None

    def propose(self, observation: Observation, count: int) -> list[Candidate]:
        """Fewer than `count`, or none, once the spaces are exhausted."""
        task = gemm(observation.task, "the policy schedule")
        pool, encode = self._pool(task, observation.chip)
        if encode is None or count < 1:
            return []
        rng = np.random.default_rng([self._seed, observation.seed, observation.round])
        tried = [(attempt, entry) for attempt in observation.attempts if (entry := _entry_of(attempt, pool)) is not None]
        seen = {attempt.candidate_id for attempt in observation.attempts}
        keys = {schedule_key(attempt.schedule) for attempt in observation.attempts if attempt.schedule}
        known = [] if observation.attempts else self._known(pool, count)
        order = self._order(pool, encode, tried, keys, count - len(known), rng)
        if tried and (tile := library_tile(observation.best_evaluation)) is not None:
            order = chain(islice(with_tile(pool, tile, [entry for _, entry in tried]), count // 2), order)
        if not observation.attempts and count >= SECOND_OPINION:
            order = _with_second_opinions(order, pool, count - len(known), known)
            order = _with_timed_forms(order, pool, count - len(known))
        if not observation.attempts and task.mode is TimingMode.OFFLINE:
            order = map(pool.improved, order)
        candidates: list[Candidate] = []
        for entry in chain(known, order):
            if len(candidates) == count:
                break
            candidate = entry.family.write(entry.schedule, task)
            if entry.key not in keys and candidate.id not in seen:
                keys.add(entry.key)
                seen.add(candidate.id)
                candidates.append(candidate)
        return candidates

    def _known(self, pool: SchedulePool, count: int) -> list[PoolEntry]:
        """The first precedents that a family can write for the task: half of a round, and all that carry over.

        Of other shapes only those that the prior expects to be near its best.
        """
        precedents = list(self._precedents(pool.task, pool.chip))
        own = sum(one.carries_over(pool.task) for one in precedents)
        written = [(one, entry) for one in precedents if (entry := pool.entry_today(one.schedule)) is not None]
        times_us = pool.predict_us([entry for _, entry in written]) if written else ()
        limit_us = pool.prior.precedent_limit * float(pool.predicted_us.min())
        worth = (
            entry
            for (one, entry), time_us in zip(written, times_us, strict=True)
            if time_us <= limit_us or one.task.shape == pool.task.shape
        )
        return list(islice(worth, min(count, max(count // 2, own))))

    def _pool(self, task: GemmTask, chip: Chip) -> tuple[SchedulePool, EntryEncoding | None]:
        """The pool and its encoding, cached for the task and chip; no encoding where no schedule fits the task."""
        if self._cached is None or self._cached[:2] != (task, chip):
            pool = SchedulePool(self._families, task, chip, self._seed, self._prior_of(task, chip))
            self._cached = (task, chip, pool, pool.prior.encoding(pool.entries, task, chip) if pool.entries else None)
        return self._cached[2], self._cached[3]

    def _order(
        self,
        pool: SchedulePool,
        encode: EntryEncoding,
        tried: Sequence[tuple[Attempt, PoolEntry]],
        keys: set[Key],
        count: int,
        rng: np.random.Generator,
    ) -> Iterator[PoolEntry]:
        """Entries worth trying, best first; by the prior alone where nothing was measured.

        Times are divided by the probability of success: the criterion is the expected time per working kernel.
        """
        risk = Risk([entry for _, entry in tried], [attempt.status in FAILED for attempt, _ in tried])
        free = [index for index, entry in enumerate(pool.entries) if entry.key not in keys]
        entries = [pool.entries[index] for index in free]
        expected_us = pool.predicted_us[free] / (1 - risk(entries))
        ranked = rank_by_prior(entries, expected_us, [entry for _, entry in tried], pool.prior.crowding)
        learned = _learn(pool, encode, tried)
        if learned is None or not entries:
            return ranked
        drawn = rank_by_draws(expected_us, encode.fitted[free], learned, rng, count)
        near = [entry for entry in neighbours_of_best(pool, tried, rng) if entry.key not in keys]
        chosen = draw_near(near, count // 2, pool, encode, learned, risk, rng)
        return chain(chosen, (entries[index] for index in drawn), ranked)


def _with_second_opinions(
    order: Iterator[PoolEntry], pool: SchedulePool, count: int, known: Sequence[PoolEntry]
) -> Iterator[PoolEntry]:
    """The order of a first round, in which the prior's second opinions name the last of `count` schedules.

    Each passes over what was named before it, `known` among that. The last one names one at least, and fills the place where
    two schedules give the same source. The members of a network err together; other kinds of learner err elsewhere (log/).
    """
    opinions = pool.prior.second_opinions
    if not opinions or count < 1:
        return order
    *shares, last = (int(count * opinion.share) for opinion in opinions)
    shares.append(max(last, 1))
    named = list(islice(order, count - sum(shares)))
    filling: Iterator[PoolEntry] = iter(())
    for opinion, share in zip(opinions, shares, strict=True):
        filling = _named_by(opinion, pool, [*known, *named])
        named += islice(filling, share)
    return chain(named, filling, order)


def _with_timed_forms(order: Iterator[PoolEntry], pool: SchedulePool, count: int) -> Iterator[PoolEntry]:
    """The order of a first round of `count` schedules that are not all of forms which no run behind the prior has timed.

    Where they would be, the last quarter goes to the fastest of other forms: the prior cannot tell these apart.
    """

    def timed(entry: PoolEntry) -> bool:
        return not entry.family.unmeasured(entry.schedule, pool.task)

    first = list(islice(order, count))
    if any(timed(entry) for entry in first):
        return chain(first, order)
    by_prior = (pool.entries[int(place)] for place in np.argsort(pool.predicted_us, kind="stable"))
    kept = count - count // 4
    return chain(first[:kept], islice(filter(timed, by_prior), count - kept), first[kept:], order)


def _named_by(opinion: SecondOpinion, pool: SchedulePool, before: Sequence[PoolEntry]) -> Iterator[PoolEntry]:
    """The schedules that a second opinion is asked about, best first, without those `before` it."""
    leading = pool.entries
    ranked = [pool.entries[int(place)] for place in np.argsort(pool.predicted_us, kind="stable")]
    if opinion.among is not None:
        leading = ranked[: opinion.among]
    judged = opinion.judge(leading, pool.task, pool.chip)
    best = (leading[int(place)] for place in np.argsort(judged, kind="stable"))
    if not opinion.unlike:
        keys = {entry.key for entry in before}
        return (entry for entry in best if entry.key not in keys)
    of_group: dict[Group, PoolEntry] = {}  # the one that the prior expects to be fastest
    for entry in ranked:
        of_group.setdefault(entry.group, entry)
    for entry in before:
        of_group.pop(entry.group, None)
    return (found for entry in best if (found := of_group.pop(entry.group, None)) is not None)


def _entry_of(attempt: Attempt, pool: SchedulePool) -> PoolEntry | None:
    """The entry behind an attempt; None where another policy wrote it, or no family can write it for the task."""
    return pool.entry(attempt.schedule) if attempt.schedule else None


def _learn(pool: SchedulePool, encode: EntryEncoding, tried: Sequence[tuple[Attempt, PoolEntry]]) -> Surrogate | None:
    """A surrogate fitted to the latest timed attempts; None where there are none."""
    times_us = steady_times_us([attempt for attempt, _ in tried], pool.task.mode)
    timed = [(times_us[attempt.candidate_id], entry) for attempt, entry in tried if attempt.candidate_id in times_us]
    timed = timed[-MAX_FITTED:]
    if not timed:
        return None
    entries = [entry for _, entry in timed]
    measured_us = np.array([time_us for time_us, _ in timed])
    return Surrogate(encode(entries), np.log(measured_us / pool.predict_us(entries)))
