"""The parts of the search: the pool of schedules, the surrogate, the choice of the next candidates."""

import math
import zlib
from collections import Counter
from collections.abc import Iterator, Sequence
from itertools import islice

import numpy as np
import pytest

from cudal2_agent.contract.plan.chip import REFERENCE_CHIPS, Chip
from cudal2_agent.contract.records.task import Arch, GemmTask
from cudal2_agent.policies.schedule.families.mma_sync.family import MmaSync
from cudal2_agent.policies.schedule.families.mma_sync.schedule import MmaSyncSchedule
from cudal2_agent.policies.schedule.families.registry import families
from cudal2_agent.policies.schedule.optimiser import schedule_pool
from cudal2_agent.policies.schedule.optimiser.acquisition import rank_by_draws, rank_by_prior
from cudal2_agent.policies.schedule.optimiser.pool_entry import PoolEntry
from cudal2_agent.policies.schedule.optimiser.pool_prior import ANALYTIC, Encoding
from cudal2_agent.policies.schedule.optimiser.schedule_pool import MAX_OF_FAMILY, SchedulePool
from cudal2_agent.policies.schedule.optimiser.surrogate import GaussianProcess, Risk, Surrogate
from cudal2_agent.policies.schedule.prior import Floats

TASK = GemmTask(m=256, n=256, k=1024, arch=Arch.SM_80)
CHIP = REFERENCE_CHIPS[Arch.SM_80]


@pytest.fixture(scope="module")
def pool() -> SchedulePool:
    return SchedulePool([MmaSync()], TASK, CHIP, seed=0)


def test_a_pool_holds_a_sample_of_each_family(pool: SchedulePool) -> None:
    assert 0 < len(pool.entries) <= MAX_OF_FAMILY
    assert len({entry.key for entry in pool.entries}) == len(pool.entries)
    assert pool.predicted_us.shape == (len(pool.entries),)
    assert (pool.predicted_us > 0).all()
    again = SchedulePool([MmaSync()], TASK, CHIP, seed=0)
    assert [entry.key for entry in again.entries] == [entry.key for entry in pool.entries]


def test_neighbours_are_valid_and_one_or_two_steps_away(pool: SchedulePool) -> None:
    entry = pool.entries[len(pool.entries) // 2]
    neighbours = list(pool.neighbours(entry, np.random.default_rng(0)))
    assert len(neighbours) > 5
    for neighbour in neighbours:
        changed = {axis for axis, value in neighbour.values.items() if entry.values[axis] != value}
        assert 1 <= len(changed) <= 2
        neighbour.family.write(neighbour.schedule, TASK)


class TwoHabits:
    """Expects a schedule to be fast that has both values of a habit, and slow with one of them: no single step helps."""

    name, crowding, parents, precedent_limit, second_opinions = "two habits", ANALYTIC.crowding, 12, 1.05, ()
    habits = ({"epilogue": "direct", "warps_k": 1}, {"block_k": 32, "stages": 6})

    def predict_us(self, entries: Sequence[PoolEntry], *_of: object, **_named: object) -> Floats:
        return np.array([1 + sum(self._cost(entry, habit) for habit in self.habits) + self._noise(entry) for entry in entries])

    def _cost(self, entry: PoolEntry, habit: dict[str, object]) -> int:
        return (1, 2, 0)[sum(entry.values[axis] == value for axis, value in habit.items())]

    def _noise(self, entry: PoolEntry) -> float:
        """At most 0.1, so that the best are of both habits."""
        return zlib.crc32(repr(sorted(entry.values.items())).encode()) % 1000 / 10_000

    def encoding(self, entries: Sequence[PoolEntry], *_of: object, **_named: object) -> Encoding:
        return Encoding(entries)


class WithoutTheBest(MmaSync):
    """A space that, as a sample may, lacks what has both habits."""

    def space(self, task: GemmTask, chip: Chip) -> Iterator[MmaSyncSchedule]:
        wanted = {**TwoHabits.habits[0], **TwoHabits.habits[1]}
        return (one for one in super().space(task, chip) if any(one.values()[axis] != wanted[axis] for axis in wanted))


def test_a_pool_crosses_good_schedules_where_no_single_step_helps(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(schedule_pool, "PAIRED_STEPS", 0)
    prior = TwoHabits()
    crossed = SchedulePool([WithoutTheBest()], TASK, CHIP, seed=0, prior=prior)
    assert crossed.predicted_us.min() < 1.1
    assert len({entry.key for entry in crossed.entries}) == len(crossed.entries)
    monkeypatch.setattr(schedule_pool, "CROSSINGS", 0)
    assert SchedulePool([WithoutTheBest()], TASK, CHIP, seed=0, prior=prior).predicted_us.min() >= 2


def test_a_pool_without_schedules_has_nothing_to_cross() -> None:
    assert SchedulePool([], TASK, CHIP, seed=0, prior=TwoHabits()).entries == []


def test_schedules_of_nobody_have_no_entry(pool: SchedulePool) -> None:
    assert pool.entry({"family": "wgmma_tma", "consumers": 2}) is None
    assert pool.entry({"family": "mma_sync", "block_m": -64}) is None
    assert pool.entry({}) is None


def test_what_was_read_once_is_not_confused_with_what_equals_it() -> None:
    fresh = SchedulePool([MmaSync()], TASK, CHIP, seed=0)
    values = fresh.entries[0].values
    assert fresh.entry(values | {"programmatic": 0}) is None
    first = fresh.entry(values)
    assert first is not None
    assert first.key == fresh.entries[0].key
    assert fresh.entry(values) is first


def test_the_prior_alone_ranks_diversely(pool: SchedulePool) -> None:
    ranked = list(islice(rank_by_prior(pool.entries, pool.predicted_us, [], ANALYTIC.crowding), 8))
    assert ranked[0] is pool.entries[int(np.argmin(pool.predicted_us))]
    assert len({entry.key for entry in ranked}) == 8
    assert max(Counter(entry.group for entry in ranked).values()) <= 4
    after = next(rank_by_prior(pool.entries, pool.predicted_us, [ranked[0]] * 50, ANALYTIC.crowding))
    assert after.group != ranked[0].group


def test_the_prior_ranks_everything_once(pool: SchedulePool) -> None:
    some = pool.entries[:40]
    ranked = rank_by_prior(some, pool.predicted_us[:40], [], ANALYTIC.crowding)
    assert {entry.key for entry in ranked} == {entry.key for entry in some}
    assert list(rank_by_prior([], np.array([]), [], ANALYTIC.crowding)) == []


def test_a_gaussian_process_recovers_a_smooth_function() -> None:
    rng = np.random.default_rng(0)
    x = rng.uniform(-2, 2, (60, 2))
    y = np.sin(2 * x[:, 0]) + 0.3 * x[:, 1]
    process = GaussianProcess(x[:50], y[:50])
    mean, deviation = process.predict(x[50:])
    assert np.abs(mean - y[50:]).max() < 0.25
    far, unsure = process.predict(np.full((1, 2), 100.0))
    assert abs(far[0]) < 1e-6
    assert unsure[0] > 2 * deviation.max()


def test_draws_agree_with_mean_and_deviation() -> None:
    rng = np.random.default_rng(1)
    x = rng.uniform(-1, 1, (20, 3))
    process = GaussianProcess(x, x[:, 0])
    where = rng.uniform(-1, 1, (5, 3))
    mean, deviation = process.predict(where)
    draws = process.draw(where, 20_000, rng)
    assert draws.mean(axis=0) == pytest.approx(mean, abs=0.02)
    assert draws.std(axis=0) == pytest.approx(deviation, rel=0.1, abs=0.01)


def test_one_point_or_equal_points_are_enough_to_fit() -> None:
    for x, y in ((np.zeros((1, 4)), np.array([0.3])), (np.ones((6, 4)), np.full(6, 0.2))):
        mean, deviation = GaussianProcess(x, y).predict(x)
        assert np.isfinite(mean).all()
        assert np.isfinite(deviation).all()


def test_a_surrogate_carries_a_mistake_of_the_prior_to_similar_schedules(pool: SchedulePool) -> None:
    encode = Encoding(pool.entries)
    wide = np.array([entry.work.tile[0] >= 128 for entry in pool.entries])
    rng = np.random.default_rng(0)
    seen = np.concatenate([rng.choice(np.flatnonzero(wide), 15), rng.choice(np.flatnonzero(~wide), 15)])
    ratios = np.where(wide[seen], math.log(1.8), 0.0)
    mean, _ = Surrogate(encode.fitted[seen], ratios).predict(encode.fitted)
    assert mean[wide].mean() > mean[~wide].mean() + 0.25


def test_what_failures_have_in_common_is_risky(pool: SchedulePool) -> None:
    split = [entry for entry in pool.entries if entry.values["split_k"] == 2][:6]
    whole = [entry for entry in pool.entries if entry.values["split_k"] == 1][:6]
    risk = Risk([*split, *whole], [True] * 6 + [False] * 6)
    assert risk(split).min() == pytest.approx(6 / 8)
    assert risk(whole).max() < risk(split).min()
    unseen = [entry for entry in pool.entries if entry.values["split_k"] == 2][-3:]
    assert risk(unseen).min() == pytest.approx(6 / 8)


def test_without_failures_there_is_no_risk(pool: SchedulePool) -> None:
    assert not Risk([], [])(pool.entries).any()
    assert not Risk(pool.entries[:5], [False] * 5)(pool.entries).any()


def test_draws_rank_the_truly_fast_first(pool: SchedulePool) -> None:
    encode = Encoding(pool.entries)
    deep = np.array([entry.work.stages >= 4 for entry in pool.entries])
    truth = np.where(deep, 0.0, math.log(3.0))
    seen = np.random.default_rng(0).choice(len(pool.entries), 40, replace=False)
    surrogate = Surrogate(encode.fitted[seen], truth[seen])
    chosen = rank_by_draws(np.ones(len(pool.entries)), encode.fitted, surrogate, np.random.default_rng(1), 8)
    assert len(set(chosen)) == 8
    assert np.mean(deep[chosen]) > 0.8


def test_fewer_schedules_than_draws_are_each_chosen_once(pool: SchedulePool) -> None:
    encode = Encoding(pool.entries)
    surrogate = Surrogate(encode.fitted[:5], np.array([0.1, 0.0, 0.2, 0.4, 0.3]))
    chosen = rank_by_draws(pool.predicted_us[:3], encode.fitted[:3], surrogate, np.random.default_rng(0), 8)
    assert sorted(chosen) == [0, 1, 2]


def test_encoding_places_what_it_never_saw(pool: SchedulePool) -> None:
    encode = Encoding(pool.entries[:10])
    rows = encode(pool.entries[-5:])
    assert rows.shape == (5, encode.fitted.shape[1])
    assert np.isfinite(rows).all()
    assert encode(pool.entries[:10]) == pytest.approx(encode.fitted)


def test_a_mutation_that_cannot_run_is_never_asked_for_its_work() -> None:
    task = GemmTask(m=128, n=128, k=16384)
    pool = SchedulePool(families(task.arch), task, REFERENCE_CHIPS[task.arch], seed=0)
    valid = next(entry for entry in pool.entries if entry.values.get("cluster_k") == 8)
    assert pool.entry(valid.values) is not None
    assert pool.entry(valid.values | {"cluster_k": 16, "cluster_m": 4, "cluster_n": 4}) is None
    for entry in pool.entries[:: len(pool.entries) // 20]:
        assert all(neighbour.work.ctas > 0 for neighbour in pool.neighbours(entry, np.random.default_rng(0)))
