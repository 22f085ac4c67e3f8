"""The trajectory store: records survive, duplicates are stored once, and a bad file is left unchanged."""

import math
import multiprocessing
import sqlite3
import threading
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest
from backports import zstd

from cudal2_agent.contract.errors import StoreError, UsageError
from cudal2_agent.contract.records.candidate import Origin
from cudal2_agent.contract.records.evaluation import TestResult, Wrong
from cudal2_agent.store.store import RunExchanges, Store, open_store
from tests.doubles import INSPECTION, NOW, OBSERVATION, TASK, candidate, measured, run_record, step
from tests.policies.chat.exchanges import exchange


@pytest.fixture
def url(tmp_path: Path) -> str:
    return f"sqlite:///{tmp_path / 'deep' / 'folder' / 'store.sqlite'}"


@pytest.fixture
def store(url: str) -> Store:
    made = open_store(url)
    made.start_run(run_record())
    made.record_observation("run-1", OBSERVATION)
    return made


def test_what_was_recorded_is_there_after_reopening(store: Store, url: str) -> None:
    steps = [step(0), step(1, number=1, reward=0.5, seconds={"agent": 0.01})]
    for one in steps:
        store.record_step(one)
    trajectory = open_store(url).trajectory("run-1")
    assert trajectory.run == run_record()
    assert list(trajectory.steps) == steps
    assert trajectory.observations == {OBSERVATION.id: OBSERVATION}


def test_a_step_recorded_twice_is_one_and_the_last_counts(store: Store) -> None:
    store.record_step(step(0, reward=0.1))
    store.record_step(step(0, reward=0.2))
    assert [one.reward for one in store.steps("run-1")] == [0.2]


def test_equal_code_is_stored_once_and_each_step_keeps_its_origin(store: Store, url: str) -> None:
    other = candidate(0).model_copy(update={"origin": Origin(policy="chat", prompt_hash="abc")})
    store.record_step(step(0))
    store.record_step(step(1, candidate=other))
    assert [one.candidate.origin.policy for one in store.steps("run-1")] == ["scripted", "chat"]
    assert count(url, "contents") == 1


def test_an_observation_is_stored_once(store: Store, url: str) -> None:
    assert store.record_observation("run-1", OBSERVATION) == OBSERVATION.id
    assert count(url, "observations") == 1
    assert store.observation(OBSERVATION.id) == OBSERVATION


def test_nan_and_infinity_survive(store: Store) -> None:
    failed = TestResult(tier="bounds", name="gaussian", passed=False, worst=math.nan)
    worse = TestResult(tier="bounds", name="uniform", passed=False, worst=math.inf)
    store.record_step(step(0, evaluation=Wrong(test=failed, tests=(failed, worse), inspection=INSPECTION)))
    [back] = store.steps("run-1")
    assert isinstance(back.evaluation, Wrong)
    assert math.isnan(back.evaluation.test.worst)
    assert back.evaluation.tests[1].worst == math.inf


def test_unknown_ids_are_the_users_mistake(store: Store) -> None:
    with pytest.raises(UsageError, match="no run 'other'"):
        store.run("other")
    with pytest.raises(UsageError, match="no run 'other'"):
        store.update_run(run_record("other"))
    with pytest.raises(StoreError, match="observation 123 is not in the store"):
        store.observation("123")
    assert store.steps("other") == []


def test_a_run_is_started_once(store: Store) -> None:
    with pytest.raises(StoreError, match="exists already"):
        store.start_run(run_record())


def test_a_step_of_nothing_recorded_is_refused_and_leaves_nothing(store: Store, url: str) -> None:
    with pytest.raises(StoreError, match="was not recorded"):
        store.record_step(step(0, run_id="other"))
    with pytest.raises(StoreError, match="was not recorded"):
        store.record_step(step(0, observation_id="other"))
    assert count(url, "steps") == 0
    assert count(url, "contents") == 0


@pytest.mark.parametrize("content", [b"not a database at all\n" * 100, b"SQLite format 3\0" + b"\xff" * 4096])
def test_a_corrupt_file_is_one_line_and_left_untouched(tmp_path: Path, content: bytes) -> None:
    path = tmp_path / "store.sqlite"
    path.write_bytes(content)
    with pytest.raises(StoreError, match="left untouched") as caught:
        open_store(f"sqlite:///{path}")
    assert path.read_bytes() == content
    assert "\n" not in str(caught.value)


def test_a_store_damaged_in_the_middle_is_reported_when_it_is_read(store: Store, url: str) -> None:
    for index in range(40):
        store.record_step(step(index, number=index, evaluation=measured(5.0 + index)))
    store.close()
    path = Path(url.removeprefix("sqlite:///"))
    content = bytearray(path.read_bytes())
    content[8192:] = b"\xa5" * len(content[8192:])
    path.write_bytes(content)
    with pytest.raises(StoreError):
        open_store(url).steps("run-1")


def test_somebody_elses_database_is_not_taken_over(tmp_path: Path) -> None:
    path = tmp_path / "photos.sqlite"
    with sqlite3.connect(path) as connection:
        connection.execute("CREATE TABLE photos (id INTEGER)")
    before = path.read_bytes()
    with pytest.raises(StoreError, match="tables of another program"):
        open_store(f"sqlite:///{path}")
    assert path.read_bytes() == before


def test_a_store_of_a_newer_version_is_refused_and_left_untouched(store: Store, url: str) -> None:
    store.close()
    path = Path(url.removeprefix("sqlite:///"))
    with sqlite3.connect(path) as connection:
        connection.execute("UPDATE alembic_version SET version_num = '0099'")
    connection.close()
    before = path.read_bytes()
    with pytest.raises(StoreError, match="has schema 0099, this version reads 0004; update cudal2-agent"):
        open_store(url)
    assert path.read_bytes() == before


def test_a_record_that_does_not_load_is_named(store: Store, url: str) -> None:
    with sqlite3.connect(url.removeprefix("sqlite:///")) as connection:
        connection.execute("UPDATE runs SET dictionary = NULL, data = ?", [zstd.compress(b"{}")])
    connection.close()
    with pytest.raises(StoreError, match="run run-1 in the store cannot be read"):
        store.run("run-1")


@pytest.mark.usefixtures("store")
def test_a_locked_store_says_so(url: str) -> None:
    connection = sqlite3.connect(url.removeprefix("sqlite:///"))
    connection.execute("BEGIN IMMEDIATE")
    with pytest.raises(StoreError, match="locked by another process"):
        open_store(url, busy_timeout_s=0.1).record_step(step(0))
    connection.close()


@pytest.mark.parametrize(
    ("address", "message"),
    [
        ("no url", "not an SQLAlchemy URL"),
        ("nosuchdatabase://x/y", "not supported"),
        ("sqlite:////proc/no/such/folder/x.sqlite", "cannot be created"),
    ],
)
def test_a_wrong_address_is_one_line(address: str, message: str) -> None:
    with pytest.raises(StoreError, match=message):
        open_store(address)


@pytest.mark.parametrize(
    "address",
    [
        "sqlite://user:hunter2@/{}",
        "postgresql+psycopg://u:hunter2@127.0.0.1:9/d?password=hunter2",
    ],
)
def test_a_password_is_not_shown(tmp_path: Path, address: str) -> None:
    with pytest.raises(StoreError) as caught:
        open_store(address.format(tmp_path))
    assert "hunter2" not in str(caught.value)


def test_a_folder_in_place_of_the_file(tmp_path: Path) -> None:
    with pytest.raises(StoreError, match="cannot be used"):
        open_store(f"sqlite:///{tmp_path}")


def _write_run(url: str, name: str, count: int) -> None:
    store = open_store(url)
    store.start_run(run_record(name))
    store.record_observation(name, OBSERVATION)
    for index in range(count):
        store.record_step(step(index, number=index, run_id=name))


def test_processes_write_at_once(url: str) -> None:
    """Three processes open the same new store and record the same candidates."""
    context = multiprocessing.get_context("spawn")
    names = ["run-a", "run-b", "run-c"]
    workers = [context.Process(target=_write_run, args=(url, name, 15)) for name in names]
    for worker in workers:
        worker.start()
    for worker in workers:
        worker.join(60)
    assert [worker.exitcode for worker in workers] == [0, 0, 0]
    assert open_store(url).step_counts() == dict.fromkeys(names, 15)
    assert count(url, "contents") == 15


def test_a_new_store_waits_for_another_process_that_makes_it(url: str) -> None:
    path = Path(url.removeprefix("sqlite:///"))
    path.parent.mkdir(parents=True)
    holds = sqlite3.connect(path, isolation_level=None, check_same_thread=False)
    holds.execute("BEGIN IMMEDIATE")
    ends = threading.Timer(0.3, holds.close)
    ends.start()
    open_store(url).close()
    ends.join()
    assert count(url, "runs") == 0


def count(url: str, table: str) -> int:
    connection = sqlite3.connect(url.removeprefix("sqlite:///"))
    [(number,)] = connection.execute(f"SELECT count(*) FROM {table}")
    connection.close()
    return int(number)


def test_exchanges_come_back_in_the_order_of_their_places(store: Store, url: str) -> None:
    written = [exchange((2, 0, 0)), exchange((1, 1, 1)), exchange((1, 10, 0)), exchange((1, 0, 0), status="cut", problem="cut")]
    for one in written:
        store.record_exchange("run-1", one)
    assert open_store(url).exchanges("run-1") == sorted(written, key=lambda one: one.place)
    assert store.exchanges("other") == []


def test_a_prompt_is_stored_once_and_an_exchange_recorded_twice_is_one(store: Store, url: str) -> None:
    for sample in range(3):
        store.record_exchange("run-1", exchange((1, sample, 0)))
    store.record_exchange("run-1", exchange((1, 2, 0), reply="another", candidate_id="abc"))
    assert count(url, "contents") == 1
    assert count(url, "exchanges") == 3
    assert store.exchanges("run-1")[2].reply == "another"


def test_replies_that_are_hard_to_store_survive(store: Store) -> None:
    hard = exchange(reply="NUL \0, 🚀, 'quotes', \\u0000, \u2028" + "x" * 2_000_000, reasoning="\r\n")
    store.record_exchange("run-1", hard)
    assert store.exchanges("run-1") == [hard]


def test_an_exchange_of_no_run_is_refused_and_leaves_nothing(store: Store, url: str) -> None:
    with pytest.raises(StoreError, match="names run other, which was not recorded"):
        store.record_exchange("other", exchange())
    assert count(url, "contents") == 0


def test_a_runs_log_holds_its_own_exchanges(store: Store) -> None:
    store.start_run(run_record("run-2"))
    for run_id in ("run-1", "run-2"):
        RunExchanges(store, run_id).record(exchange(reply=f"of {run_id}"))
    assert [one.reply for one in RunExchanges(store, "run-2").recorded()] == ["of run-2"]


def test_an_exchange_that_does_not_load_is_named(store: Store, url: str) -> None:
    store.record_exchange("run-1", exchange())
    connection = sqlite3.connect(url.removeprefix("sqlite:///"))
    connection.execute("UPDATE exchanges SET dictionary = NULL, data = ?", [zstd.compress(b"{}")])
    connection.commit()
    connection.close()
    with pytest.raises(StoreError, match="an exchange of run run-1 in the store cannot be read"):
        store.exchanges("run-1")


# The tables of the version before exchanges.
VERSION_1 = """
CREATE TABLE cudal2_meta ("key" VARCHAR(64) NOT NULL, value VARCHAR(255) NOT NULL, PRIMARY KEY ("key"));
CREATE TABLE runs (run_id VARCHAR(128) NOT NULL, created_at VARCHAR(40) NOT NULL, status VARCHAR(16) NOT NULL,
  shape VARCHAR(64) NOT NULL, record TEXT NOT NULL, PRIMARY KEY (run_id));
CREATE TABLE observations (id VARCHAR(64) NOT NULL, record TEXT NOT NULL, PRIMARY KEY (id));
CREATE TABLE candidates (id VARCHAR(64) NOT NULL, record TEXT NOT NULL, PRIMARY KEY (id));
CREATE TABLE steps (run_id VARCHAR(128) NOT NULL, "index" INTEGER NOT NULL, observation_id VARCHAR(64) NOT NULL,
  candidate_id VARCHAR(64) NOT NULL, status VARCHAR(24) NOT NULL, reward FLOAT, record TEXT NOT NULL,
  PRIMARY KEY (run_id, "index"), FOREIGN KEY(run_id) REFERENCES runs (run_id),
  FOREIGN KEY(observation_id) REFERENCES observations (id), FOREIGN KEY(candidate_id) REFERENCES candidates (id));
CREATE INDEX steps_by_candidate ON steps (candidate_id);
INSERT INTO cudal2_meta VALUES ('schema', '1');
"""


@pytest.fixture
def older(tmp_path: Path) -> str:
    """A store of the version before exchanges, with one run."""
    path = tmp_path / "older.sqlite"
    connection = sqlite3.connect(path)
    connection.executescript(VERSION_1)
    row = ("run-1", NOW.isoformat(), "running", TASK.shape, run_record().model_dump_json())
    connection.execute("INSERT INTO runs VALUES (?, ?, ?, ?, ?)", row)
    connection.commit()
    connection.close()
    return f"sqlite:///{path}"


def test_a_store_of_the_version_before_gains_the_tables_and_keeps_its_runs(older: str) -> None:
    store = open_store(older)
    assert store.run("run-1") == run_record()
    store.record_exchange("run-1", exchange())
    assert open_store(older).exchanges("run-1") == [exchange()]
    assert count(older, "cudal2_meta") == 1


def test_many_that_open_an_older_store_at_once_all_find_the_tables(older: str) -> None:
    def record(sample: int) -> None:
        with open_store(older) as store:
            for turn in range(5):
                store.record_exchange("run-1", exchange((1, sample, turn)))

    with ThreadPoolExecutor(6) as pool:
        list(pool.map(record, range(6)))
    assert len(open_store(older).exchanges("run-1")) == 30
    assert count(older, "contents") == 1
