"""Merges: whole records, as often as wanted; the source is only read."""

import sqlite3
import tarfile
from collections.abc import Iterator
from contextlib import closing
from datetime import timedelta
from hashlib import sha256
from pathlib import Path

import pytest

from cudal2_agent.agent.run.lifecycle import check_resumable
from cudal2_agent.contract.errors import StoreError, UsageError
from cudal2_agent.contract.records.evaluation import CompileFailed
from cudal2_agent.contract.records.trajectory import Observation
from cudal2_agent.contract.settings.run_settings import RunSettings
from cudal2_agent.store import merging, tables
from cudal2_agent.store.merging import MergeSummary, merge_store
from cudal2_agent.store.packing import zstd
from cudal2_agent.store.store import Store, open_store
from tests.doubles import CHIP, NOW, OBSERVATION, TASK, profile, run_record, step
from tests.policies.chat.exchanges import exchange

HOMES = Path(__file__).parents[1] / "stored" / "b1f38a8" / "homes.tar.xz"
UNSEEN = Observation(task=TASK, chip=CHIP, round=2, seed=0, seconds_left=1.5)
ENDED = {"status": "finished", "finished_at": NOW}


@pytest.fixture
def target(tmp_path: Path) -> Iterator[Store]:
    with open_store(f"sqlite:///{tmp_path / 'target.sqlite'}") as made:
        yield made


@pytest.fixture
def path(tmp_path: Path) -> Path:
    return tmp_path / "source.sqlite"


@pytest.fixture
def source(path: Path) -> Iterator[Store]:
    """A store with two runs that have ended. In the first one, an exchange of round 2 led to no step."""
    with open_store(f"sqlite:///{path}") as made:
        for run_id in ("run-1", "run-2"):
            made.start_run(run_record(run_id, **ENDED))
            made.record_observation(run_id, OBSERVATION)
            made.record_step(step(0, run_id=run_id, profile=profile()))
        made.record_observation("run-1", UNSEEN)
        made.record_exchange("run-1", exchange(candidate_id=step(0).candidate.id))
        made.record_exchange("run-1", exchange((2, 0, 0), observation_id=UNSEEN.id, problem="no code"))
        yield made


def everything(store: Store) -> list[object]:
    return [store.trajectory(run.run_id) for run in store.runs()]


def test_whole_records_arrive_and_a_second_merge_adds_nothing(target: Store, source: Store, path: Path) -> None:
    assert merge_store(target, str(path)) == MergeSummary(runs=2, steps=2, exchanges=2)
    assert everything(target) == everything(source)
    assert target.observation(UNSEEN.id) == UNSEEN
    assert merge_store(target, f"sqlite:///{path}") == MergeSummary(known_runs=2)
    assert everything(target) == everything(source)


def test_a_merge_that_was_stopped_is_repeated(target: Store, source: Store, path: Path) -> None:
    def stop(_: str, done: int, runs: int) -> None:
        assert runs == 2
        if done == 1:
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        merge_store(target, str(path), stop)
    assert [run.run_id for run in target.runs()] == ["run-1"]
    assert merge_store(target, str(path)) == MergeSummary(runs=1, known_runs=1, steps=1)
    assert everything(target) == everything(source)


def test_a_run_is_there_whole_or_not_at_all(target: Store, source: Store, path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def fail(*_: object) -> None:
        raise KeyboardInterrupt

    with monkeypatch.context() as patch:
        patch.setattr(merging.PlainWriter, "record_exchange", fail)
        with pytest.raises(KeyboardInterrupt):
            merge_store(target, str(path))
    assert target.runs() == []
    merge_store(target, str(path))
    assert everything(target) == everything(source)


def test_a_run_that_went_on_is_continued(target: Store, source: Store, path: Path) -> None:
    source.update_run(run_record("run-2"))
    merge_store(target, str(path))
    assert target.run("run-2").status == "finished", "nobody resumes it here"
    source.record_step(step(1, number=1, run_id="run-2"))
    source.record_step(step(0, run_id="run-2", reward=0.5))
    source.update_run(run_record("run-2", **ENDED))
    assert merge_store(target, str(path)) == MergeSummary(continued_runs=1, known_runs=1, steps=2)
    assert everything(target) == everything(source)


def test_a_source_that_is_behind_changes_nothing(target: Store, source: Store, path: Path) -> None:
    merge_store(target, str(path))
    before = everything(target)
    source.record_step(step(0, run_id="run-2", reward=0.5))
    source.update_run(run_record("run-2"))
    assert merge_store(target, str(path)) == MergeSummary(known_runs=2)
    assert everything(target) == before


def test_a_run_that_was_resumed_and_ended_later_counts(target: Store, source: Store, path: Path) -> None:
    merge_store(target, str(path))
    source.record_step(step(0, run_id="run-2", reward=0.5))
    source.update_run(run_record("run-2", status="finished", finished_at=NOW + timedelta(hours=1)))
    assert merge_store(target, str(path)) == MergeSummary(continued_runs=1, known_runs=1, steps=1)
    assert everything(target) == everything(source)


@pytest.mark.usefixtures("source")
def test_runs_that_contradict_each_other_are_left_out_and_named(target: Store, path: Path) -> None:
    target.start_run(run_record("run-1", seed=5))
    with pytest.raises(UsageError, match=r"1 of 2 runs differ from this store's .* left out \(run-1\); the others are merged"):
        merge_store(target, str(path))
    assert target.run("run-1").seed == 5
    assert target.step_counts() == {"run-2": 1}


def test_steps_that_contradict_each_other_are_left_out(target: Store, source: Store, path: Path) -> None:
    merge_store(target, str(path))
    source.record_step(step(0, run_id="run-2", evaluation=CompileFailed(message="no", log="")))
    with pytest.raises(UsageError, match=r"left out \(run-2\)"):
        merge_store(target, str(path))
    assert target.steps("run-2")[0].evaluation.status == "measured"


def test_a_store_of_version_01_is_only_read(target: Store, tmp_path: Path) -> None:
    with tarfile.open(HOMES) as tar:
        tar.extractall(tmp_path / "homes", filter="data")
    old = tmp_path / "homes" / "trajectories.sqlite"
    before = sha256(old.read_bytes()).hexdigest()
    summary = merge_store(target, str(old))
    assert (summary.runs, summary.steps, summary.exchanges) == (3, 12, 30)
    assert merge_store(target, str(old)) == MergeSummary(known_runs=3)
    assert sha256(old.read_bytes()).hexdigest() == before
    copy = tmp_path / "copy ✗ #1 50%41.sqlite"
    copy.write_bytes(old.read_bytes())
    assert merge_store(target, str(copy)) == MergeSummary(known_runs=3)
    assert sha256(copy.read_bytes()).hexdigest() == before
    moved = copy.rename(tmp_path / "copy.sqlite")
    with open_store(f"sqlite:///{moved}") as migrated:
        assert everything(target) == [one.model_copy(update={"run": one.run.travelled()}) for one in everything(migrated)]


def test_a_merged_run_names_no_place_and_is_not_resumed(target: Store, source: Store, path: Path) -> None:
    settings = RunSettings(home=Path("/stranger"), base_url="http://stranger/v1", api_key_file=Path("/etc/passwd"), budget=7)
    source.start_run(run_record("run-3", settings=settings, out="/stranger/out"))
    merge_store(target, str(path))
    run = target.run("run-3")
    assert (run.status, run.out, run.settings.budget) == ("finished", None, 7)
    assert "stranger" not in run.model_dump_json()
    assert "passwd" not in run.model_dump_json()
    with pytest.raises(UsageError, match="it came from another store; start a new run"):
        check_resumable(run)


def test_a_source_that_is_not_there_is_not_created(target: Store, tmp_path: Path) -> None:
    with pytest.raises(UsageError, match="there is no store at"):
        merge_store(target, str(tmp_path / "none.sqlite"))
    assert not (tmp_path / "none.sqlite").exists()


@pytest.mark.parametrize("address", ["mysql://host/db", "nonsense://", "://", "a?b.sqlite"])
def test_an_address_that_is_no_store_is_one_clear_line(target: Store, address: str) -> None:
    with pytest.raises((UsageError, StoreError)) as caught:
        merge_store(target, address)
    assert "\n" not in str(caught.value)


@pytest.mark.usefixtures("source")
def test_another_program_s_database_and_a_newer_store_are_refused(target: Store, tmp_path: Path, path: Path) -> None:
    with closing(sqlite3.connect(tmp_path / "their.sqlite")) as connection:
        connection.execute("CREATE TABLE songs (name TEXT)")
    with pytest.raises(StoreError, match="holds tables of another program"):
        merge_store(target, str(tmp_path / "their.sqlite"))
    (tmp_path / "text.sqlite").write_text("not a database, but long enough to look like a file of some kind" * 10)
    with pytest.raises(StoreError, match="damaged or not a store"):
        merge_store(target, str(tmp_path / "text.sqlite"))
    with closing(sqlite3.connect(path)) as connection:
        connection.execute("UPDATE alembic_version SET version_num = '9999'")
        connection.commit()
    with pytest.raises(StoreError, match="schema 9999"):
        merge_store(target, str(path))


@pytest.mark.parametrize(
    "damage",
    [
        "UPDATE runs SET run_id = 'run-9' WHERE run_id = 'run-2'",
        "UPDATE observations SET parent = key",
        "UPDATE dictionaries SET base = key",
        "UPDATE dictionaries SET base = 'x'",
        "UPDATE migration SET version_num = x'00'",
        "UPDATE migration SET version_num = '0'",
        "UPDATE step_records SET data = zeroblob(100)",
        "UPDATE step_records SET data = 'text'",
        "UPDATE steps SET candidate = 10000",
        "CREATE VIEW evil AS SELECT 1",
        "CREATE TRIGGER evil AFTER INSERT ON runs BEGIN DELETE FROM runs; END",
    ],
)
def test_a_source_that_a_stranger_made_is_refused_in_one_line(target: Store, source: Store, path: Path, damage: str) -> None:
    source.compact()
    with closing(sqlite3.connect(path)) as connection:
        connection.execute(damage.replace("migration", str(tables.migration.name)))
        connection.commit()
    with pytest.raises(StoreError) as caught:
        merge_store(target, str(path))
    assert len(str(caught.value).splitlines()) == 1


def test_a_packed_record_that_unpacks_to_too_much_is_refused(target: Store, source: Store, path: Path) -> None:
    source.compact()
    with closing(sqlite3.connect(path)) as connection:
        connection.execute(
            "UPDATE step_records SET dictionary = NULL, data = ?", (zstd.compress(b"[" + b" " * (65 << 20) + b"]"),)
        )
        connection.commit()
    with pytest.raises(StoreError, match=r"a frame of more than 67,108,864 bytes"):
        merge_store(target, str(path))
