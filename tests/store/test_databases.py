"""The store behaves alike in SQLite and in PostgreSQL: records, failures, several writers, hard numbers and hard text."""

import math
import tarfile
import threading
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from multiprocessing.context import ForkServerContext
from pathlib import Path
from typing import Any

import pytest
from sqlalchemy import MetaData, create_engine, insert, select, text

from cudal2_agent.contract.errors import StoreError, UsageError
from cudal2_agent.contract.records.candidate import Origin
from cudal2_agent.contract.records.evaluation import Crashed, TestResult, Wrong
from cudal2_agent.contract.records.trajectory import Attempt
from cudal2_agent.store.steps import export_steps, to_line
from cudal2_agent.store.store import Store, open_store
from tests.doubles import CHIP, INSPECTION, OBSERVATION, candidate, measured, run_record, step
from tests.policies.chat.exchanges import exchange
from tests.store.conftest import HOMES, server_address

HARD_TEXTS = (
    "NUL \0 inside",
    "beyond 16 bits 🚀",
    "quotes ' \" `, backslashes \\ \\u0000 \\x00",
    "percent %s %(name)s :name {0}",
    "line ends \r\n \u2028 \u2029 \x85, tab \t, bell \a",
    "right to left \u202e, joined \u200d, marks e\u0301 and \u00e9",
    "BOM \ufeff, last \U0010ffff, none \ufffe",
    "",
)


@pytest.fixture
def store(database_url: str) -> Iterator[Store]:
    with open_store(database_url) as made:
        made.start_run(run_record())
        made.record_observation("run-1", OBSERVATION)
        yield made


def test_what_was_recorded_is_there_after_reopening(store: Store, database_url: str) -> None:
    attempt = Attempt(candidate_id=candidate(0).id, policy="scripted", schedule=None, status="measured", time_us=5.0)
    second = OBSERVATION.model_copy(update={"round": 2, "attempts": (attempt,), "best": candidate(0)})
    steps = [step(0), step(1, number=1, round=2, observation_id=second.id, reward=0.5, seconds={"agent": 0.01})]
    store.record_step(steps[0])
    store.record_observation("run-1", second)
    store.record_step(steps[1])
    store.record_exchange("run-1", exchange())
    with open_store(database_url) as again:
        trajectory = again.trajectory("run-1")
        assert again.step_counts() == {"run-1": 2}
    assert trajectory.run == run_record()
    assert list(trajectory.steps) == steps
    assert trajectory.observations == {OBSERVATION.id: OBSERVATION, second.id: second}
    assert list(trajectory.exchanges) == [exchange()]


def test_a_step_and_an_exchange_recorded_again_replace_the_first(store: Store) -> None:
    store.record_step(step(0, reward=0.1))
    store.record_step(step(0, reward=0.2, evaluation=measured(4.0)))
    store.record_exchange("run-1", exchange())
    store.record_exchange("run-1", exchange(reply="another"))
    assert store.steps("run-1") == [step(0, reward=0.2, evaluation=measured(4.0))]
    assert [one.reply for one in store.exchanges("run-1")] == ["another"]


def test_a_run_changes_its_status(store: Store) -> None:
    store.update_run(run_record(status="finished"))
    assert store.run("run-1").status == "finished"
    with pytest.raises(StoreError, match="exists already"):
        store.start_run(run_record())
    with pytest.raises(UsageError, match="no run 'other'"):
        store.update_run(run_record("other"))


def test_what_names_nothing_recorded_is_refused_and_leaves_nothing(store: Store) -> None:
    with pytest.raises(StoreError, match="was not recorded"):
        store.record_step(step(0, run_id="other"))
    with pytest.raises(StoreError, match="was not recorded"):
        store.record_step(step(0, observation_id="0123456789abcdef"))
    with pytest.raises(StoreError, match="was not recorded"):
        store.record_exchange("other", exchange())
    assert store.step_counts() == {}
    assert store.exchanges("other") == []


def test_a_batch_that_fails_leaves_nothing(store: Store) -> None:
    other = OBSERVATION.model_copy(update={"seed": 2})

    def write() -> None:
        with store.batch() as batch:
            batch.start_run(run_record("run-2"))
            batch.record_observation("run-2", other)
            batch.record_step(step(0, run_id="run-2", observation_id=other.id))
            batch.record_step(step(1, run_id="run-3", observation_id=other.id))

    with pytest.raises(StoreError, match="was not recorded"):
        write()
    assert [run.run_id for run in store.runs()] == ["run-1"]
    assert store.step_counts() == {}
    with pytest.raises(StoreError, match="not in the store"):
        store.observation(other.id)
    store.record_step(step(0))  # with the dictionaries that exist
    assert store.steps("run-1") == [step(0)]


def test_not_a_number_and_infinities_survive(store: Store) -> None:
    sizes = (math.nan, math.inf, -math.inf, -0.0, 5e-324, 1.7976931348623157e308)
    tests = tuple(TestResult(tier="bounds", name=str(size), passed=False, worst=size) for size in sizes)
    store.record_step(step(0, evaluation=Wrong(test=tests[0], tests=tests, inspection=INSPECTION), reward=-2.0))
    [back] = store.steps("run-1")
    assert isinstance(back.evaluation, Wrong)
    assert [str(test.worst) for test in back.evaluation.tests] == [str(size) for size in sizes]


@pytest.mark.parametrize("hard", HARD_TEXTS)
def test_replies_sources_and_messages_keep_every_character(store: Store, hard: str) -> None:
    test = TestResult(tier="exact", name=hard, passed=False, message=hard)
    one = candidate(0).model_copy(update={"source": f"// {hard}\n", "origin": Origin(policy="chat", note=hard)})
    wrong = step(0, candidate=one, evaluation=Wrong(test=test, tests=(test,), inspection=INSPECTION))
    said = exchange(text=hard, reply=hard, reasoning=hard)
    store.record_step(wrong)
    store.record_exchange("run-1", said)
    assert store.steps("run-1") == [wrong]
    assert store.exchanges("run-1") == [said]


def test_half_a_surrogate_pair_is_refused_in_one_line(store: Store) -> None:
    """No file in UTF-8 could hold it, so that every export would fail."""
    half, before = "half \ud800", store.trajectory("run-1")
    source = candidate(0).model_copy(update={"source": f"// {half}\n"})
    records: list[Callable[[], object]] = [
        lambda: store.record_step(step(0, candidate=source)),
        lambda: store.record_step(step(0, evaluation=Crashed(stage="verify", message=half))),
        lambda: store.record_exchange("run-1", exchange(reply=half)),
        lambda: store.record_exchange("run-1", exchange(text=half)),
        lambda: store.start_run(run_record("run-2", out=half)),
    ]
    for record in records:
        with pytest.raises(StoreError, match="surrogates not allowed") as caught:
            record()
        assert len(str(caught.value).splitlines()) == 1
    assert store.trajectory("run-1") == before
    assert [run.run_id for run in store.runs()] == ["run-1"]
    store.record_step(step(0))
    assert store.steps("run-1") == [step(0)]


@pytest.mark.parametrize("hard", HARD_TEXTS)
def test_names_keep_every_character_or_are_refused_in_one_line(store: Store, database_url: str, hard: str) -> None:
    """No column of text of PostgreSQL can hold a NUL. Nothing is written then."""
    run = run_record("run-2", policy=f"policy {hard}", chip=CHIP.model_copy(update={"name": f"chip {hard}"}))
    if "\0" in hard and database_url.startswith("postgresql"):
        with pytest.raises(StoreError) as caught:
            store.start_run(run)
        assert len(str(caught.value).splitlines()) == 1
        assert [one.run_id for one in store.runs()] == ["run-1"]
    else:
        store.start_run(run)
        assert store.run(run.run_id) == run
        assert run in store.runs()


def _write_run(url: str, name: str, count: int) -> None:
    with open_store(url) as store:
        store.start_run(run_record(name))
        for index in range(count):
            observation = OBSERVATION.model_copy(update={"round": index + 1})
            store.record_observation(name, observation)
            store.record_step(step(index, number=index, run_id=name, observation_id=observation.id))


def test_several_processes_write_at_once(database_url: str, nursery: ForkServerContext) -> None:
    """They open the same empty database at the same time, and record equal observations and candidates."""
    names = ["run-a", "run-b", "run-c"]
    writers = [nursery.Process(target=_write_run, args=(database_url, name, 12)) for name in names]
    for writer in writers:
        writer.start()
    for writer in writers:
        writer.join(60)
    assert [writer.exitcode for writer in writers] == [0, 0, 0]
    with open_store(database_url) as store:
        assert store.step_counts() == dict.fromkeys(names, 12)
        for name in names:
            assert [one.candidate for one in store.steps(name)] == [candidate(number) for number in range(12)]


def test_a_server_that_goes_away_is_one_line_and_the_store_works_again(postgres_server: Any, postgres_url: str) -> None:
    with open_store(postgres_url) as store:
        store.start_run(run_record())
        store.record_observation("run-1", OBSERVATION)
        store.record_step(step(0))
        _end_connections(postgres_server, postgres_url)
        with pytest.raises(StoreError, match="cannot be used") as caught:
            store.record_step(step(1, number=1))
        assert len(str(caught.value).splitlines()) == 1
        store.record_step(step(1, number=1))
        assert store.step_counts() == {"run-1": 2}


def _end_connections(server: Any, url: str) -> None:
    """What a restart of the server does to its clients."""
    engine = create_engine(server_address(server))
    with engine.connect() as connection:
        query = "SELECT pg_terminate_backend(pid) FROM pg_stat_activity WHERE datname = :name"
        connection.execute(text(query), {"name": url.rsplit("/", 1)[1].split("?")[0]})
    engine.dispose()


def test_no_server_is_one_line(tmp_path: Path) -> None:
    with pytest.raises(StoreError, match="cannot be used") as caught:
        open_store(f"postgresql+psycopg://postgres:hunter2@/store?host={tmp_path}")
    assert len(str(caught.value).splitlines()) == 1
    assert "hunter2" not in str(caught.value)


def test_a_database_that_does_not_exist_is_one_line(postgres_url: str) -> None:
    with pytest.raises(StoreError, match="does not exist") as caught:
        open_store(postgres_url.replace("/store_", "/no_store_"))
    assert len(str(caught.value).splitlines()) == 1


def test_a_writer_gets_its_turn_beside_one_that_never_pauses(database_url: str) -> None:
    """An import writes one batch after the other; a run must not wait for its end."""
    begun, ended = threading.Event(), threading.Event()

    def import_without_end() -> None:
        with open_store(database_url) as importing:
            while not ended.is_set():
                with importing.batch():
                    begun.set()
                    ended.wait(0.02)

    with open_store(database_url, busy_timeout_s=5) as store, ThreadPoolExecutor(1) as pool:
        store.start_run(run_record())
        store.record_observation("run-1", OBSERVATION)
        importing = pool.submit(import_without_end)
        begun.wait(30)
        try:
            for index in range(10):
                store.record_step(step(index, number=index))
        finally:
            ended.set()
        importing.result()
        assert store.step_counts() == {"run-1": 10}


def test_a_store_of_version_0_1_in_postgresql_becomes_what_it_becomes_in_sqlite(postgres_url: str, tmp_path: Path) -> None:
    with tarfile.open(HOMES) as tar:
        tar.extract("./trajectories.sqlite", tmp_path, filter="data")
    sqlite_url = f"sqlite:///{tmp_path / 'trajectories.sqlite'}"
    _copy_tables(sqlite_url, postgres_url)
    lines = []
    for url in (sqlite_url, postgres_url):
        with open_store(url) as store:
            found = [*store.trajectories()]
            lines.append([to_line(one) for trajectory in found for one in export_steps(trajectory)])
            assert sum(len(trajectory.exchanges) for trajectory in found) > 0
    assert len(lines[0]) > 10
    assert lines[0] == lines[1]


def _copy_tables(from_url: str, to_url: str) -> None:
    """All tables of a database with their rows."""
    tables = MetaData()
    source, target = create_engine(from_url), create_engine(to_url)
    tables.reflect(source)
    tables.create_all(target)
    with source.connect() as reading, target.begin() as writing:
        for table in tables.sorted_tables:
            writing.execute(insert(table), [dict(row._mapping) for row in reading.execute(select(table))])
    source.dispose()
    target.dispose()
