"""The forest learns what is fast, also from other shapes; its tuner proposes valid schedules and learns from failures."""

import math

import numpy as np
import pytest

from benchmarks.proposals import forest
from benchmarks.proposals.forest import ScheduleForest
from benchmarks.proposals.forest_tuner import SAME_GROUP, ForestTuner
from benchmarks.proposals.sweeps import Sweep
from cudal2_agent.contract.plan.chip import REFERENCE_CHIPS
from cudal2_agent.contract.records.task import Arch, GemmTask
from cudal2_agent.contract.records.trajectory import Attempt, Observation
from cudal2_agent.policies.schedule.families.latency.family import Latency
from cudal2_agent.policies.schedule.families.registry import families
from cudal2_agent.policies.schedule.optimiser.schedule_pool import SchedulePool

CHIP = REFERENCE_CHIPS[Arch.SM_80]
TASK = GemmTask(m=256, n=256, k=256, arch=Arch.SM_80)


@pytest.fixture(autouse=True)
def _few_trees(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(forest, "TREES", 20)


def task(m: int) -> GemmTask:
    return TASK.model_copy(update={"m": m})


def swept(m: int) -> Sweep:
    """Schedules of a shape, the faster the wider their tiles."""
    entries = SchedulePool(families(TASK.arch), task(m), CHIP, 0).entries
    return Sweep(task(m), CHIP, entries, np.array([entry.work.tile[1] / 100 for entry in entries]))


@pytest.fixture(scope="module")
def others() -> list[Sweep]:
    return [swept(128), swept(512)]


def test_a_forest_of_other_shapes_ranks_this_one(others: list[Sweep]) -> None:
    one = swept(256)
    cost = ScheduleForest(others).rank(one.task, one.chip, one.entries)
    best = np.argsort(cost, kind="stable")[:8]
    assert one.ratios[best].mean() > np.quantile(one.ratios, 0.75) - 1e-9
    assert (ScheduleForest(others).rank(one.task, one.chip, one.entries) == cost).all()


def test_a_forest_without_a_good_example_prefers_nothing() -> None:
    one = swept(256)
    failed = Sweep(one.task, one.chip, one.entries, np.full(len(one.entries), math.nan))
    assert set(ScheduleForest([failed]).rank(one.task, one.chip, one.entries)) == {0.0}


def seen(attempts: tuple[Attempt, ...] = (), number: int = 1) -> Observation:
    return Observation(task=TASK, chip=CHIP, round=number, seed=0, attempts=attempts)


def test_the_first_round_without_data_is_random_and_repeatable() -> None:
    first = ForestTuner(families(TASK.arch), seed=1).propose(seen(), 8)
    assert len({one.id for one in first}) == 8
    assert [one.id for one in ForestTuner(families(TASK.arch), seed=1).propose(seen(), 8)] == [one.id for one in first]


def test_later_rounds_follow_the_times_and_repeat_nothing() -> None:
    tuner = ForestTuner(families(TASK.arch))
    attempts: tuple[Attempt, ...] = ()
    widths = []
    for number in range(1, 5):
        proposed = tuner.propose(seen(attempts, number), 8)
        assert len(proposed) == 8
        schedules = [one.origin.schedule or {} for one in proposed]
        widths.append(np.mean([int(one["block_n"]) for one in schedules]))
        attempts += tuple(
            Attempt(
                candidate_id=one.id, policy="lfbo", schedule=values, status="measured", speedup=int(values["block_n"]) / 100
            )
            for one, values in zip(proposed, schedules, strict=True)
        )
    assert len({one.candidate_id for one in attempts}) == 32
    assert max(widths[1:]) > widths[0]


def test_failures_alone_leave_the_next_round_random() -> None:
    tuner = ForestTuner(families(TASK.arch))
    first = tuner.propose(seen(), 8)
    failed = tuple(Attempt(candidate_id=one.id, policy="lfbo", schedule=one.origin.schedule, status="crashed") for one in first)
    assert not {one.id for one in tuner.propose(seen(failed, 2), 8)} & {one.id for one in first}


def test_a_trained_tuner_proposes_what_was_good_elsewhere_and_is_diverse(others: list[Sweep]) -> None:
    tuner = ForestTuner(families(TASK.arch), trained=ScheduleForest(others))
    proposed = tuner.propose(seen(), 8)
    schedules = [one.origin.schedule or {} for one in proposed]
    pool = SchedulePool(families(TASK.arch), TASK, CHIP, 0)
    groups = [entry.group for values in schedules if (entry := pool.entry(values)) is not None]
    assert max(groups.count(group) for group in groups) <= SAME_GROUP
    widest = max(int(entry.values["block_n"]) for entry in pool.entries)
    assert int(schedules[0]["block_n"]) == widest


def test_a_task_that_no_family_fits_gets_no_proposal() -> None:
    odd = Observation(task=GemmTask(m=7, n=7, k=7), chip=REFERENCE_CHIPS[Arch.SM_90A], round=1, seed=0)
    assert ForestTuner([Latency()]).propose(odd, 8) == []
