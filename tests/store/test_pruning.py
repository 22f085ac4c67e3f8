"""Pruning deletes what was selected and what only that referred to, and leaves the rest as it was."""

import sqlite3
from contextlib import closing
from pathlib import Path

import pytest

from cudal2_agent.contract.errors import StoreError, UsageError
from cudal2_agent.store.checking import check_store
from cudal2_agent.store.filters import ALL_STEPS, StepFilter
from cudal2_agent.store.pruning import prune
from cudal2_agent.store.store import Store, open_store
from tests.doubles import OBSERVATION, run_record
from tests.store.small_store import small_store

TABLES = ("runs", "steps", "step_records", "exchanges", "observations", "observation_contents", "contents", "environments")


@pytest.fixture
def path(tmp_path: Path) -> Path:
    small_store(tmp_path / "store.sqlite")
    return tmp_path / "store.sqlite"


@pytest.fixture
def store(path: Path) -> Store:
    return open_store(f"sqlite:///{path}")


def rows(path: Path) -> dict[str, int]:
    with closing(sqlite3.connect(path)) as connection:
        return {name: connection.execute(f"select count(*) from {name}").fetchone()[0] for name in TABLES}


def indices(store: Store, run_id: str) -> list[int]:
    return [step.index for step in store.steps(run_id)]


def test_steps_by_outcome_go_and_the_others_stay_as_they_were(store: Store) -> None:
    before = {step.index: step for step in store.steps("run-1")}
    assert prune(store, StepFilter(outcomes=("compile_failed",))).steps == 2
    kept = store.trajectory("run-1")
    assert [step.index for step in kept.steps] == [0, 1, 3, 4, 5, 7]
    assert all(before[step.index] == step for step in kept.steps)
    assert len(kept.exchanges) == 2
    assert list(check_store(store)) == []


def test_a_whole_run_goes_with_all_that_only_it_used(store: Store, path: Path) -> None:
    other = store.trajectory("run-2")
    found = prune(store, StepFilter(runs=("run-1",)))
    assert (found.runs, found.steps, found.exchanges, found.observations) == (1, 8, 2, 2)
    assert [run.run_id for run in store.runs()] == ["run-2"]
    assert store.trajectory("run-2") == other
    left = rows(path)
    assert (left["contents"], left["observation_contents"], left["environments"]) == (1, 0, 1)
    assert list(check_store(store)) == []


def test_what_another_run_uses_stays(store: Store, path: Path) -> None:
    candidates = rows(path)["contents"]
    prune(store, StepFilter(runs=("run-2",)))
    assert rows(path)["contents"] == candidates  # its only candidate is one of run-1
    assert store.steps("run-1")[0].candidate.source.startswith("// candidate 0")


def test_a_run_without_steps_goes_too(store: Store) -> None:
    found = prune(store, StepFilter(policies=("chat",), min_speedup=0.0))
    assert (found.runs, found.steps) == (1, 3)
    assert [run.run_id for run in store.runs()] == ["run-1"]


@pytest.mark.parametrize(("keep", "kept"), [(0, []), (1, [0]), (3, [0, 1, 3]), (6, [0, 1, 3, 4, 5, 7]), (8, list(range(8)))])
def test_the_best_of_each_run_stay(store: Store, keep: int, kept: list[int]) -> None:
    found = prune(store, ALL_STEPS, keep_best=keep)
    assert indices(store, "run-1") == kept
    assert indices(store, "run-2") == list(range(min(keep, 3)))
    assert found.steps == 11 - len(kept) - min(keep, 3)
    assert list(check_store(store)) == []


def test_a_dry_run_tells_the_same_and_deletes_nothing(store: Store, path: Path) -> None:
    before, selected = rows(path), StepFilter(max_speedup=0.5)
    planned = prune(store, selected, dry_run=True)
    assert rows(path) == before
    assert planned == prune(store, selected)
    assert planned.steps == before["steps"] - rows(path)["steps"] > 0
    assert planned.observations == before["observations"] - rows(path)["observations"]
    assert planned.contents == before["contents"] - rows(path)["contents"]


def test_an_observation_stays_for_those_that_continue_it(store: Store) -> None:
    seen = store.trajectory("run-1").steps[-1].observation_id
    whole = store.observation(seen)
    store_first = [step.index for step in store.steps("run-1") if step.round == 1]
    assert store_first == [0, 1, 2, 3]
    prune(store, StepFilter(runs=("run-1",), min_speedup=0.9))  # all measured steps of round 1 but one, none of round 2
    prune(store, StepFilter(runs=("run-1",), outcomes=("compile_failed",)))
    assert store.observation(seen) == whole
    assert list(check_store(store)) == []


def test_a_running_run_is_refused_unless_forced(store: Store) -> None:
    store.update_run(run_record(status="running"))
    with pytest.raises(UsageError, match="run-1 are running; wait"):
        prune(store, StepFilter(outcomes=("compile_failed",)))
    assert len(indices(store, "run-1")) == 8
    assert prune(store, StepFilter(policies=("chat",))).runs == 1
    assert prune(store, StepFilter(outcomes=("compile_failed",)), force=True).steps == 2


@pytest.mark.parametrize(("status", "stays"), [("running", True), ("failed", False)])
def test_the_observation_of_a_round_in_progress_stays(store: Store, status: str, stays: bool) -> None:
    store.start_run(run_record("run-3", status=status))
    waiting = OBSERVATION.model_copy(update={"round": 7})
    store.record_observation("run-3", waiting)
    prune(store, StepFilter(runs=("run-1",)))
    if stays:
        assert store.observation(waiting.id) == waiting
    else:
        with pytest.raises(StoreError, match="not in the store"):
            store.observation(waiting.id)


def test_a_failure_deletes_nothing(store: Store, path: Path) -> None:
    before = rows(path)
    with closing(sqlite3.connect(path)) as connection, connection:
        connection.execute("create trigger stop before delete on contents begin select raise(abort, 'no'); end")
    with pytest.raises(StoreError):
        prune(store, StepFilter(runs=("run-1",)))
    assert rows(path) == before
    assert store.trajectory("run-1").steps


def test_compacting_gives_space_back(store: Store, path: Path) -> None:
    prune(store, ALL_STEPS)
    store.compact()
    store.close()
    free = sqlite3.connect(path)
    assert free.execute("pragma freelist_count").fetchone() == (0,)
    free.close()
