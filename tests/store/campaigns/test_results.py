"""Results and tuned baselines: what is recorded is found by filters, and a proof changes its row."""

import sqlite3
from collections.abc import Iterator
from pathlib import Path

import pytest
from sqlalchemy import inspect

from cudal2_agent.contract.records.campaign import Explanation
from cudal2_agent.contract.records.task import GemmTask, Layout, TimingMode
from cudal2_agent.contract.settings.run_settings import RunSettings
from cudal2_agent.store import tables
from cudal2_agent.store.campaign_queue import CampaignQueue
from cudal2_agent.store.campaign_results import ResultFilter, claim_unproved, replace_result
from cudal2_agent.store.checking import check_store
from cudal2_agent.store.engine import open_engine
from cudal2_agent.store.store import Store, open_store
from tests.store.campaigns.rows import result, tasks, tuned
from tests.store.small_store import small_store

CHECKED = (tables.shape_results, tables.tuned_baselines)
SMALL, LARGE = GemmTask(m=64, n=64, k=64), GemmTask(m=4096, n=64, k=64, layout=Layout.TN, mode=TimingMode.SERVER)


@pytest.fixture
def store(database_url: str) -> Iterator[Store]:
    with open_store(database_url) as made:
        for name in ("one", "two"):
            CampaignQueue(made, name).open(RunSettings())
        CampaignQueue(made, "one").take_over([result(LARGE, 1.1), result(SMALL, 1.3)])
        CampaignQueue(made, "two").take_over([result(SMALL, None, later_s=60, environment=None, reason="nothing passed")])
        yield made


def test_results_come_by_shape_and_by_filters(store: Store) -> None:
    assert [one.task for one in store.results()] == [SMALL, SMALL, LARGE]
    assert store.results(ResultFilter(campaigns=("two",)))[0].reason == "nothing passed"
    assert store.results(ResultFilter(modes=(TimingMode.SERVER,))) == [result(LARGE, 1.1)]
    assert store.results(ResultFilter(layouts=(Layout.NN,), environments=(result(SMALL).environment or "",))) == [
        result(SMALL, 1.3)
    ]


def test_each_winner_is_proved_once_the_fastest_first(store: Store) -> None:
    wanted = ResultFilter()
    with store.writing() as connection:
        first, second = claim_unproved(connection, wanted), claim_unproved(connection, wanted)
        assert claim_unproved(connection, wanted) is None, "the third row has no winner"
    assert first is not None
    assert second is not None
    assert [first.result.task, second.result.task] == [SMALL, LARGE]
    proved = first.result.model_copy(update={"witness": "unavailable: it needs a cluster of 32"})
    with store.writing() as connection:
        replace_result(connection, first.key, proved)
        assert claim_unproved(connection, wanted) is None
    assert proved in store.results()


def test_a_verdict_travels_to_a_row_without_one_and_none_is_lost(store: Store) -> None:
    queue, proved = CampaignQueue(store, "one"), result(SMALL, 1.3, witness="agreed")
    assert queue.take_over([proved, result(LARGE, 1.1)]) == 0
    assert queue.take_over([result(SMALL, 1.3)]) == 0
    assert store.results(ResultFilter(campaigns=("one",)))[0].witness == "agreed"


def test_the_last_baseline_kept_wins(store: Store) -> None:
    assert store.tuned(SMALL, "elsewhere") is None
    store.keep(tuned(SMALL))
    store.keep(tuned(SMALL, time_us=5.5))
    store.keep(tuned(LARGE))
    store.keep(tuned(SMALL, environment="elsewhere", algorithm="11"))
    assert store.tuned(SMALL, tuned(SMALL).environment) == tuned(SMALL, time_us=5.5)
    assert store.tuned(SMALL, "elsewhere") == tuned(SMALL, environment="elsewhere", algorithm="11")


def test_a_changed_result_baseline_or_task_is_found(tmp_path: Path) -> None:
    path = tmp_path / "trajectories.sqlite"
    with open_store(f"sqlite:///{path}") as store:
        queue = CampaignQueue(store, "one")
        queue.open(RunSettings())
        queue.add({SMALL: 1.0}, seed=0)
        queue.take_over([result(SMALL, witness="agreed")])
        store.keep(tuned(SMALL))
        assert list(check_store(store)) == []
    own = {"key", "campaign", "proof_until"}  # no record repeats them
    columns = [(table.name, column.name) for table in CHECKED for column in table.columns if column.name not in own]
    columns += [("campaign_items", "task"), ("campaign_items", "record")]
    for table, column in columns:
        with sqlite3.connect(path) as connection:
            [(before,)] = connection.execute(f"SELECT {column} FROM {table}").fetchall()
            after = (
                before + 1 if isinstance(before, int | float) else before.replace("4", "5").replace("a", "b").replace("n", "m")
            )
            connection.execute(f"UPDATE {table} SET {column} = ?", (after if after != before else "other",))
        connection.commit()
        with open_store(f"sqlite:///{path}") as store:
            assert len(list(check_store(store))) == 1, (table, column)
        connection.execute(f"UPDATE {table} SET {column} = ?", (before,))
        connection.commit()
        connection.close()


def test_a_store_of_version_2_gets_the_tables_and_keeps_its_runs(tmp_path: Path) -> None:
    path = tmp_path / "trajectories.sqlite"
    url = small_store(path)
    with open_store(url) as store:
        before = [store.trajectory(run.run_id) for run in store.runs()]
    connection = sqlite3.connect(path)
    for table in (tables.campaign_items, tables.shape_results, tables.tuned_baselines, tables.campaigns):
        connection.execute(f"DROP TABLE {table.name}")
    connection.execute("UPDATE alembic_version SET version_num = '0002'")
    connection.commit()
    connection.close()
    with open_store(url) as store:
        assert [store.trajectory(run.run_id) for run in store.runs()] == before
        queue = CampaignQueue(store, "grid")
        queue.open(RunSettings())
        assert queue.add(tasks(2), seed=0) == 2
    engine = open_engine(url)
    assert set(tables.metadata.tables) == set(inspect(engine).get_table_names())
    engine.dispose()


def test_an_explanation_travels_to_the_same_row(store: Store) -> None:
    queue, told = CampaignQueue(store, "one"), Explanation(tool="ncu", environment="", findings=(), counters={"tensor_pct": 60})
    assert queue.take_over([result(SMALL, 1.3, explained=told)]) == 0
    assert queue.take_over([result(SMALL, 1.3, witness="agreed")]) == 0
    assert queue.take_over([result(SMALL, 1.3)]) == 0
    [row] = [one for one in store.results(ResultFilter(campaigns=("one",))) if one.task == SMALL]
    assert (row.explained, row.witness) == (told, "agreed")
    other = result(SMALL, 1.7, explained=told.model_copy(update={"tool": "of another kernel"}))
    queue.take_over([other])
    assert store.results(ResultFilter(campaigns=("one",)))[0] == row
