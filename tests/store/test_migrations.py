"""Stores of version 0.1 become today's store: the same records, the same hashes, and the tables of a new store."""

import json
import sqlite3
import tarfile
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from alembic.config import Config
from alembic.script import ScriptDirectory
from sqlalchemy import Engine, inspect, select

import cudal2_agent.store.migrations as migrations
from cudal2_agent.contract.base import digest
from cudal2_agent.store import tables
from cudal2_agent.store.engine import open_engine
from cudal2_agent.store.packing import Packer
from cudal2_agent.store.plain_records import content_id
from cudal2_agent.store.reader import PlainReader, unnamed
from tests.doubles.scripted import profile

HOMES = Path(__file__).parents[1] / "stored" / "b1f38a8" / "homes.tar.xz"
EMPTY_BYTES = 50 * 4096  # pages of tables and indices with a few rows
RECORDS = ("runs", "observations", "candidates", "steps", "prompts", "exchanges")
Old = dict[str, dict[Any, Any]]


@pytest.fixture(params=["./trajectories.sqlite", "scripted/trajectories.sqlite"])
def path(tmp_path: Path, request: pytest.FixtureRequest) -> Path:
    """A store of version 0.1 with a profile and an error that is not a number."""
    with tarfile.open(HOMES) as tar:
        tar.extract(request.param, tmp_path, filter="data")
    path: Path = tmp_path / request.param
    connection = sqlite3.connect(path)
    [(run_id, index, text)] = connection.execute('SELECT run_id, "index", record FROM steps LIMIT 1')
    record = {**json.loads(text), "profile": profile().model_dump(mode="json")}
    if record["evaluation"].get("tests"):
        record["evaluation"]["tests"][0]["worst"] = "NaN"
    connection.execute('UPDATE steps SET record = ? WHERE run_id = ? AND "index" = ?', (json.dumps(record), run_id, index))
    connection.commit()
    connection.close()
    return path


def old_records(path: Path) -> Old:
    """The records of a store of version 0.1, by key."""
    connection = sqlite3.connect(path)
    key = {"runs": "run_id", "steps": 'run_id, "index", candidate_id', "exchanges": "run_id, round, sample, turn, prompt_id"}
    found: Old = {}
    for table in RECORDS:
        rows = connection.execute(f"SELECT {key.get(table, 'id')}, record FROM {table}").fetchall()
        found[table] = {row[:-1] if len(row) > 2 else row[0]: json.loads(row[-1]) for row in rows}
    connection.close()
    return found


@pytest.fixture
def migrated(path: Path) -> Iterator[tuple[Old, Engine]]:
    old = old_records(path)
    engine = open_engine(f"sqlite:///{path}")
    yield old, engine
    engine.dispose()


def text(plain: Any) -> str:
    """JSON in which a number that is not finite is a string, as version 0.1 wrote it."""
    return json.dumps(plain, sort_keys=True).replace("NaN", '"NaN"').replace('""NaN""', '"NaN"')


def test_every_record_is_what_it_was(migrated: tuple[Old, Engine]) -> None:
    old, engine = migrated
    with engine.connect() as connection:
        reader = PlainReader(connection, Packer())
        runs = {row.run_id: reader.run(row) for row in connection.execute(select(tables.runs))}
        assert runs == old["runs"]
        steps = {}
        for run_id in runs:
            for _, plain in reader.steps(run_id, tables.steps.c.key > 0):
                steps[run_id, plain["index"]] = plain
        for (run_id, index, candidate_id), record in old["steps"].items():
            whole = {**record, "candidate": {**old["candidates"][candidate_id], **record["candidate"]}}
            assert text(steps.pop((run_id, index))) == text(whole)
        assert not steps
        exchanges = {(run_id, *place(plain)): plain for run_id in runs for plain in reader.exchanges(run_id)}
        for (*key, prompt_id), record in old["exchanges"].items():
            assert exchanges.pop(tuple(key)) == {**record, "prompt": old["prompts"][prompt_id]}
        assert not exchanges


def place(exchange: dict[str, Any]) -> tuple[int, int, int]:
    return exchange["round"], exchange["sample"], exchange["turn"]


def test_observations_and_contents_still_have_their_hashes(migrated: tuple[Old, Engine]) -> None:
    old, engine = migrated
    with engine.connect() as connection:
        reader = PlainReader(connection, Packer())
        keys = {unnamed(row.hash): row.key for row in connection.execute(select(tables.observations))}
        named = {record["observation_id"] for table in ("steps", "exchanges") for record in old[table].values()}
        assert keys.keys() == named
        for id_, key in keys.items():
            assert reader.observation(key) == old["observations"][id_]
            assert digest(reader.observation(key)) == id_
        contents = connection.execute(select(tables.contents)).all()
        assert {"candidate", "profile"} <= {row.kind for row in contents}
        for row in contents:
            assert row.hash == f"sha256:{content_id(row.kind, reader.content(row.key))}"


def test_a_store_is_migrated_once_and_takes_less_room(path: Path) -> None:
    before = path.stat().st_size
    for _ in range(2):
        open_engine(f"sqlite:///{path}").dispose()
    connection = sqlite3.connect(path)
    assert connection.execute("SELECT version_num FROM alembic_version").fetchall() == [(tables.VERSION,)]
    assert connection.execute("SELECT value FROM cudal2_meta").fetchall() == [(tables.SCHEMA,)]
    assert connection.execute("PRAGMA integrity_check").fetchall() == [("ok",)]
    assert connection.execute("PRAGMA foreign_key_check").fetchall() == []
    connection.close()
    assert path.stat().st_size <= max(before // 2, EMPTY_BYTES)


def test_migrated_tables_are_those_of_a_new_store(migrated: tuple[Old, Engine], tmp_path: Path) -> None:
    new = open_engine(f"sqlite:///{tmp_path / 'new.sqlite'}")
    assert shape(migrated[1]) == shape(new)
    new.dispose()


def shape(engine: Engine) -> dict[str, Any]:
    """Columns, indices, unique constraints and foreign keys of each table."""
    look = inspect(engine)
    return {
        table: (
            [(one["name"], str(one["type"]), one["nullable"], one["primary_key"]) for one in look.get_columns(table)],
            sorted(str(one["column_names"]) + one["name"] for one in look.get_indexes(table) if one["name"]),
            sorted(str(one["column_names"]) for one in look.get_unique_constraints(table)),
            sorted(str((one["constrained_columns"], one["referred_table"])) for one in look.get_foreign_keys(table)),
        )
        for table in look.get_table_names()
    }


def test_the_newest_migration_is_the_version_of_the_tables() -> None:
    config = Config()
    config.set_main_option("script_location", str(Path(migrations.__file__).parent))
    assert ScriptDirectory.from_config(config).get_current_head() == tables.VERSION
