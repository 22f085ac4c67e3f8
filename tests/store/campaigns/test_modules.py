"""Modules in the queue and rows of modules: beside those of products, in the same store."""

import sqlite3
from collections.abc import Iterator
from pathlib import Path

import pytest

from cudal2_agent.contract.records.task import Layout, TimingMode
from cudal2_agent.contract.settings.run_settings import RunSettings
from cudal2_agent.store import tables
from cudal2_agent.store.campaign_queue import CampaignQueue
from cudal2_agent.store.campaign_results import ResultFilter
from cudal2_agent.store.checking import check_store
from cudal2_agent.store.store import Store, open_store
from tests.doubles.campaign_modules import asked, module_row
from tests.store.campaigns.rows import result, tasks


@pytest.fixture
def store(database_url: str) -> Iterator[Store]:
    with open_store(database_url) as made:
        yield made


def queue_of(store: Store, name: str = "mixed") -> CampaignQueue:
    queue = CampaignQueue(store, name)
    queue.open(RunSettings())
    return queue


def test_both_kinds_of_tasks_go_through_one_queue(store: Store) -> None:
    queue, [shape] = queue_of(store), tasks(1)
    queue.add({shape: 1.0, asked(): 1.0}, seed=0)
    found = [queue.claim("a"), queue.claim("a")]
    assert {claim.task for claim in found if claim} == {shape, asked()}
    for claim in found:
        assert claim is not None
        assert queue.finish(claim, result(shape) if claim.task == shape else module_row())
    assert queue.counts().done == 2
    assert [one.result for one in queue.modules()] == [module_row()]
    assert [one.result.task for one in queue.results()] == [shape]


def test_a_module_with_a_row_is_not_searched_again_and_a_changed_one_is(store: Store) -> None:
    queue = queue_of(store)
    old, other = asked(rows=8), asked("level1/2_other")
    queue.take_over([module_row(old)])
    assert queue.replace([old, other]) == 0
    queue.add({old: 1.0, other: 1.0}, seed=0)
    assert (queue.counts().done, queue.counts().pending) == (1, 1)
    changed, renewed = asked(rows=16), asked("level1/2_other", rows=16)
    assert queue.replace([changed, renewed]) == 1, "the one that has no row yet"
    queue.add({changed: 1.0, renewed: 1.0}, seed=0)
    assert (queue.counts().done, queue.counts().pending) == (1, 2)


def test_a_changed_file_that_is_being_searched_is_left_alone(store: Store) -> None:
    queue = queue_of(store)
    queue.add({asked(): 1.0}, seed=0)
    claim = queue.claim("a")
    assert claim is not None
    assert queue.replace([asked(rows=16)]) == 0
    assert queue.finish(claim, module_row())


def test_rows_are_filtered_and_taken_over_once(store: Store) -> None:
    rows = [module_row(), module_row(asked("level2/1_b", mode=TimingMode.SERVER), environment="theirs")]
    assert queue_of(store).take_over([*rows, *rows]) == 2
    assert store.modules() == rows
    assert store.modules(ResultFilter(modes=(TimingMode.SERVER,))) == rows[1:]
    assert store.modules(ResultFilter(environments=("theirs",))) == rows[1:]
    assert store.modules(ResultFilter(campaigns=("other",))) == store.modules(ResultFilter(layouts=(Layout.NN,))) == []


def test_a_store_of_version_3_gets_the_table_and_a_changed_row_is_found(tmp_path: Path) -> None:
    path = tmp_path / "trajectories.sqlite"
    with open_store(f"sqlite:///{path}") as store:
        queue_of(store).take_over([result(next(iter(tasks(1))))])
    connection = sqlite3.connect(path)
    connection.execute("DROP TABLE module_results")
    connection.execute("UPDATE alembic_version SET version_num = '0003'")
    connection.commit()
    with open_store(f"sqlite:///{path}") as store:
        assert len(store.results()) == 1
        queue_of(store).take_over([module_row()])
        assert list(check_store(store)) == []
    assert connection.execute("SELECT version_num FROM alembic_version").fetchall() == [(tables.VERSION,)]
    for column in ("task", "name", "status", "ratio", "record"):
        [(before,)] = connection.execute(f"SELECT {column} FROM module_results").fetchall()
        connection.execute(f"UPDATE module_results SET {column} = ?", (before + "x" if isinstance(before, str) else 9.0,))
        connection.commit()
        with open_store(f"sqlite:///{path}") as store:
            assert len(list(check_store(store))) == 1, column
        connection.execute(f"UPDATE module_results SET {column} = ?", (before,))
        connection.commit()
    connection.close()
