"""What of a store a policy learns from."""

import math
from collections.abc import Iterator
from pathlib import Path

import numpy as np
import pytest

from cudal2_agent.contract.records.evaluation import AUTOTUNED
from cudal2_agent.contract.records.task import GemmTask
from cudal2_agent.policies.schedule.learned.features import NAMES
from cudal2_agent.policies.training.group_cache import GroupCache
from cudal2_agent.policies.training.groups import RIVALS, TimedRun, TimedSchedule, group_of, read_runs
from cudal2_agent.store.store import Store, open_store
from tests.doubles import OBSERVATION, measured, run_record, step
from tests.doubles.timed_runs import H200, SCHEDULES, drawn_entries, record_runs, tasks, true_us, written

TASK = GemmTask(m=64, n=64, k=64)


@pytest.fixture
def store(tmp_path: Path) -> Iterator[Store]:
    with open_store(f"sqlite:///{tmp_path / 'store.sqlite'}") as opened:
        yield opened


def the_run(store: Store) -> TimedRun:
    [run] = read_runs(store)
    return run


def test_a_run_becomes_a_group_of_its_schedules(store: Store) -> None:
    record_runs(store, [TASK])
    group = group_of(the_run(store))
    assert group is not None
    assert group.features.shape == (SCHEDULES, len(NAMES))
    assert group.rival_features.shape == (RIVALS, len(NAMES))
    assert np.isfinite(group.features).all()
    assert np.isfinite(group.rival_features).all()
    expected_us = true_us(drawn_entries(TASK), TASK)
    assert np.exp(group.costs + group.baseline) == pytest.approx(expected_us, rel=1e-3)
    assert np.exp(group.baseline) == pytest.approx(10.0), "the time of the scripted baseline"


def test_a_race_counts_instead_of_the_screen(store: Store) -> None:
    record_runs(store, [TASK])
    entry = drawn_entries(TASK)[3]
    raced = measured(20.0, baselines=(AUTOTUNED,), effort="race")
    store.record_step(step(SCHEDULES, run_id=f"{TASK.shape}-run", round=2, candidate=written(entry, 3), evaluation=raced))
    run = the_run(store)
    assert len(run.timed) == SCHEDULES
    assert [(one.values, one.round) for one in run.timed if one.raced] == [(entry.values, 1)], "it was proposed in round 1"
    assert next(one.cost for one in run.timed if one.raced) == pytest.approx(np.log(2.0))


def test_a_baseline_that_was_short_for_a_moment_does_not_change_a_cost(store: Store) -> None:
    """It is 13 % shorter while another process works on the GPU; kernels whose launches overlap are not."""
    record_runs(store, [TASK])
    entry = next(one for one in drawn_entries(TASK) if one.values["programmatic"])
    before = next(one.cost for one in the_run(store).timed if one.values == entry.values)
    again = measured(10.0 * math.exp(before), 8.7, baselines=(AUTOTUNED,), effort="screen")
    store.record_step(step(SCHEDULES, run_id=f"{TASK.shape}-run", round=2, candidate=written(entry, 3), evaluation=again))
    cost = next(one.cost for one in the_run(store).timed if one.values == entry.values)
    assert cost == pytest.approx(before)


def test_runs_that_go_on_and_other_tasks_are_left_out(store: Store) -> None:
    store.start_run(run_record("open", task=TASK, chip=H200, status="running"))
    store.record_observation("open", OBSERVATION)
    record_runs(store, [TASK, GemmTask(m=64, n=64, k=128)])
    assert [run.task.k for run in read_runs(store)] == [128, 64]
    assert [run.task for run in read_runs(store, lambda task: task.k == 64)] == [TASK]


def test_schedules_of_another_version_are_left_out() -> None:
    entries = drawn_entries(TASK, 8)
    timed = [TimedSchedule(entry.values, 0.1, raced=False, round=1) for entry in entries]
    unknown = [
        TimedSchedule({**timed[0].values, "warp_magic": 3}, 0.0, False, 1),
        TimedSchedule({"family": "gone"}, 0.0, False, 1),
    ]
    group = group_of(TimedRun("r", TASK, H200, (*timed, *unknown), 5.0))
    assert group is not None
    assert len(group.costs) == 8
    assert group_of(TimedRun("r", TASK, H200, (*timed[:3], *unknown), 5.0)) is None, "three schedules say little"


def test_rivals_were_not_tried() -> None:
    entries = drawn_entries(TASK, 64)
    group = group_of(TimedRun("r", TASK, H200, tuple(TimedSchedule(e.values, 0.1, False, 1) for e in entries), 5.0))
    assert group is not None
    tried = {row.tobytes() for row in group.features}
    assert not any(row.tobytes() in tried for row in group.rival_features)


def test_the_cache_answers_and_what_is_damaged_is_made_anew(store: Store, tmp_path: Path) -> None:
    record_runs(store, tasks()[:2])
    runs, cache = read_runs(store), GroupCache(tmp_path / "cache")
    seen: list[int] = []
    first = cache.groups(runs, 0, 1, seen.append)
    assert seen == [0, 1, 2]
    files = sorted((tmp_path / "cache").iterdir())
    files[0].write_bytes(files[0].read_bytes()[:100])
    seen.clear()
    again = cache.groups(runs, 0, 1, seen.append)
    assert seen == [1, 2], "one of the two was made anew"
    assert [group.features.tobytes() for group in first] == [group.features.tobytes() for group in again]
    assert [group.run_id for group in again] == [run.run_id for run in runs]
