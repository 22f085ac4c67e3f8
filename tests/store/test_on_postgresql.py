"""Checks, deletions, merges and imports on a PostgreSQL server."""

from collections.abc import Iterator
from pathlib import Path

import pytest
from sqlalchemy import select, update

from cudal2_agent.store import tables
from cudal2_agent.store.checking import check_store
from cudal2_agent.store.filters import ALL_STEPS, StepFilter
from cudal2_agent.store.importing import import_files
from cudal2_agent.store.merging import merge_store
from cudal2_agent.store.pruning import prune
from cudal2_agent.store.store import Store, open_store
from cudal2_agent.store.sweep.sweep_files import SweepOptions, export_sweep
from tests.store.small_store import fill, small_store


@pytest.fixture
def store(postgres_url: str) -> Iterator[Store]:
    with open_store(postgres_url) as opened:
        fill(opened)
        yield opened


def test_what_is_selected_goes_and_the_rest_is_sound(store: Store) -> None:
    kept = store.trajectory("run-2")
    assert prune(store, StepFilter(outcomes=("compile_failed",))).steps == 2
    assert prune(store, StepFilter(runs=("run-1",)), keep_best=1).steps == 5
    assert prune(store, StepFilter(runs=("run-1",))).runs == 1
    assert list(store.trajectories(ALL_STEPS)) == [kept]
    assert list(check_store(store)) == []


@pytest.mark.parametrize("place", [0, 9, -1])
def test_a_flipped_byte_is_found(store: Store, place: int) -> None:
    assert list(check_store(store)) == []
    with store.writing() as connection:
        first = tables.step_records.c.step == 1
        broken = bytearray(connection.execute(select(tables.step_records.c.data).where(first)).scalar_one())
        broken[place] ^= 1
        connection.execute(update(tables.step_records).where(first).values(data=bytes(broken)))
    assert [line.partition(":")[0] for line in check_store(store)] == ["step 1 (step 0 of run run-1)"]


def test_a_merge_out_of_a_server_and_back_changes_nothing(store: Store, postgres_url: str, tmp_path: Path) -> None:
    file = tmp_path / "copy.sqlite"
    with open_store(f"sqlite:///{file}") as copy:
        assert merge_store(copy, postgres_url).runs == 2
        assert list(copy.trajectories(ALL_STEPS)) == list(store.trajectories(ALL_STEPS))
    assert merge_store(store, str(file)).known_runs == 2


def test_a_sweep_is_imported(postgres_url: str, tmp_path: Path) -> None:
    with open_store(small_store(tmp_path / "store.sqlite")) as local:
        export_sweep(local.trajectories(ALL_STEPS), tmp_path / "sweep", SweepOptions())
        expected = local.step_counts()
    with open_store(postgres_url) as store:
        assert import_files(store, [str(tmp_path / "sweep")]).steps == sum(expected.values())
        assert store.step_counts() == expected
        assert list(check_store(store)) == []
