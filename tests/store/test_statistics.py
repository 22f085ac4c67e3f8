"""Counts over the store agree with its records, for every selection."""

import math
from collections.abc import Iterator
from datetime import timedelta
from pathlib import Path

import pytest

from cudal2_agent.contract.records.evaluation import AUTOTUNED, Measured
from cudal2_agent.contract.records.trajectory import Trajectory
from cudal2_agent.contract.reward.speedup import ratio_over
from cudal2_agent.store.filters import ALL_STEPS, StepFilter
from cudal2_agent.store.statistics import NO_ENVIRONMENT, By, known_values, run_count, run_rows, step_count, store_statistics
from cudal2_agent.store.store import Store, open_store
from tests.doubles import ENVIRONMENT, NOW, run_record
from tests.store.conftest import DATABASES, new_database
from tests.store.small_store import OTHER_CHIP, fill, small_store

SELECTIONS = [
    ALL_STEPS,
    StepFilter(runs=("run-2",)),
    StepFilter(shapes=("64x128x256",)),
    StepFilter(archs=("sm_80", "sm_90a")),
    StepFilter(chips=(OTHER_CHIP.name,)),
    StepFilter(policies=("scripted",)),
    StepFilter(outcomes=("compile_failed", "wrong")),
    StepFilter(cutlass=("4.1.0",)),
    StepFilter(environments=(ENVIRONMENT.key,)),
    StepFilter(min_speedup=0.5, max_speedup=1.25),
    StepFilter(since=NOW + timedelta(seconds=1)),
    StepFilter(until=NOW + timedelta(seconds=1)),
    StepFilter(policies=("chat",), min_speedup=5.0),
]


@pytest.fixture(scope="module", params=DATABASES)
def store(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Store]:
    url = f"sqlite:///{tmp_path_factory.mktemp('store') / 'store.sqlite'}"
    if request.param == "postgresql":
        url = new_database(request.getfixturevalue("postgres_server")).render_as_string(hide_password=False)
    with open_store(url) as opened:
        fill(opened)
        yield opened


def best(trajectory: Trajectory) -> float | None:
    ratios = [ratio_over(step.evaluation, AUTOTUNED) for step in trajectory.steps]
    return max((ratio for ratio in ratios if ratio is not None), default=None)


@pytest.mark.parametrize("selected", SELECTIONS, ids=str)
def test_lists_and_counts_say_what_the_records_say(store: Store, selected: StepFilter) -> None:
    found = list(store.trajectories(selected))
    steps = [step for trajectory in found for step in trajectory.steps]
    rows = list(run_rows(store, selected))
    assert [(row.run_id, row.steps, row.speedup) for row in rows] == [
        (one.run.run_id, len(one.steps), best(one)) for one in found
    ]
    assert [row.measured for row in rows] == [
        sum(isinstance(step.evaluation, Measured) for step in trajectory.steps) for trajectory in found
    ]
    assert run_count(store, selected) == len(found)
    assert step_count(store, selected) == len(steps)
    counted = store_statistics(store, selected)
    assert (counted.runs, counted.steps) == (len(found), len(steps))
    assert counted.shapes == len({trajectory.run.task.shape for trajectory in found})
    assert sum(counted.outcomes.values()) == sum(counted.policies.values()) == len(steps)
    measured = [step for step in steps if isinstance(step.evaluation, Measured)]
    assert counted.outcomes.get("measured", 0) == sum(counted.environments.values()) == len(measured)
    assert counted.withheld == sum(step.reward is None for step in measured)


@pytest.mark.parametrize("by", ["environment", "policy", "shape", "day"])
def test_groups_add_up(store: Store, by: By) -> None:
    found = store_statistics(store, ALL_STEPS, by)
    assert sum(group.steps for group in found.groups) == found.steps == 11
    assert sum(group.measured for group in found.groups) == 9
    assert sum(group.withheld for group in found.groups) == found.withheld == 2
    assert len(found.groups) == (3 if by == "environment" else 2)


def test_environments_are_kept_apart_and_faults_have_none(store: Store) -> None:
    groups = {group.name: group for group in store_statistics(store, ALL_STEPS, "environment").groups}
    assert groups[NO_ENVIRONMENT].steps == 2
    assert groups[NO_ENVIRONMENT].speedups is None
    assert groups[ENVIRONMENT.key].measured == 6
    assert all(group.runs == 1 for group in groups.values())


def test_speedups_are_those_of_the_best_of_each_shape(store: Store) -> None:
    found = store_statistics(store, ALL_STEPS).speedups
    assert found is not None
    assert (found.maximum, found.minimum) == (2.0, 1.25)
    assert found.geometric_mean == pytest.approx(math.sqrt(2.0 * 1.25))
    assert (found.shapes, found.above_1) == (2, 1.0)
    slow = store_statistics(store, StepFilter(max_speedup=1.0)).speedups
    assert slow is not None
    assert slow.above_1 == 0.0


def test_a_limit_takes_the_newest_runs_and_lists_them_last(store: Store) -> None:
    assert [row.run_id for row in run_rows(store, ALL_STEPS, 1)] == ["run-2"]
    assert [row.run_id for row in run_rows(store, ALL_STEPS, 5)] == ["run-1", "run-2"]


def test_a_run_without_steps_is_listed_where_it_is_asked_for(tmp_path: Path) -> None:
    with open_store(small_store(tmp_path / "store.sqlite")) as store:
        store.start_run(run_record("run-3"))
        assert [row.run_id for row in run_rows(store, ALL_STEPS)] == ["run-1", "run-2"]
        [_, row, _] = run_rows(store, ALL_STEPS, empty=True)
        assert (row.run_id, row.steps, row.measured, row.speedup) == ("run-3", 0, 0, None)
        assert run_count(store, ALL_STEPS, empty=True) == 3


def test_the_size_is_that_of_the_file(tmp_path: Path) -> None:
    with open_store(small_store(tmp_path / "store.sqlite")) as store:
        found = store_statistics(store, StepFilter(policies=("chat",)))
    assert found.store_bytes == (tmp_path / "store.sqlite").stat().st_size
    assert found.bytes_per_step == found.store_bytes / 11


def test_known_values(store: Store) -> None:
    assert known_values(store, "policies") == ["chat", "scripted"]
    assert known_values(store, "cutlass") == ["4.1.0", "4.2.0"]
    assert len(known_values(store, "environments")) == 2
