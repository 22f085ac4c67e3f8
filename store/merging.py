"""Merges another store into this one: whole runs with their observations, candidates, steps, prompts and exchanges.

Each run is one transaction, and what is there already is left as it is. So a merge that was stopped is simply repeated. Records
are copied as they are stored, with the hashes that the version that wrote them computed. The source is only read.
"""

import sqlite3
import tempfile
from collections.abc import Callable, Iterator, Mapping
from contextlib import ExitStack, closing, contextmanager
from functools import partial
from pathlib import Path
from typing import Any, NamedTuple, TypeVar

from sqlalchemy import Connection, create_engine, inspect, select, true
from sqlalchemy.engine import URL, make_url
from sqlalchemy.exc import ArgumentError, SQLAlchemyError

from cudal2_agent.contract.base import Record, digest
from cudal2_agent.contract.errors import StoreError, UsageError
from cudal2_agent.contract.file_system import mount_of
from cudal2_agent.contract.records.exchange import Exchange
from cudal2_agent.contract.records.trajectory import Observation, RunRecord, Step
from cudal2_agent.store import tables
from cudal2_agent.store.engine import BUSY_TIMEOUT_S, shown_address
from cudal2_agent.store.filters import sortable
from cudal2_agent.store.packing import Packer, named
from cudal2_agent.store.plain_records import Plain
from cudal2_agent.store.read_only import connect_reader
from cudal2_agent.store.store import Store, open_store
from cudal2_agent.store.writer import OBSERVATIONS, PlainWriter

MergeProgress = Callable[[str, int, int], None]  # called with a run id, the runs done before it and the runs in all
_SAME_RUN = ("task", "chip", "policy", "seed", "created_at")
_SHOWN = 3
K = TypeVar("K")
Place = tuple[int, int, int]  # round, sample and turn of an exchange


class MergeSummary(Record):
    """What a merge added. `known_runs`: runs of which everything was there already."""

    runs: int = 0
    continued_runs: int = 0
    known_runs: int = 0
    steps: int = 0
    exchanges: int = 0


class _StoredRun(NamedTuple):
    """A run as plain records. Observations by id, steps by index, exchanges by place. `run`: as this version writes it."""

    run: Plain
    observations: dict[str, Plain]
    steps: dict[int, Plain]
    exchanges: dict[Place, Plain]


def merge_store(target: Store, source_url: str, progress: MergeProgress | None = None) -> MergeSummary:
    """Add what another store holds. `source_url`: an SQLite file or an SQLAlchemy URL.

    Of a run that both hold, what ended later counts. Runs that differ although they ended at the same time are left out, and
    named once all others are merged.
    Raises: UsageError for a source that does not exist and for runs that were left out. StoreError for a store that cannot be
    read or written, and for a source of an older version on a server.
    """
    packer = Packer()
    total, differing = MergeSummary(), []
    with ExitStack() as stack:
        with _sound("the source"):
            source = stack.enter_context(_opened(source_url))
            ids = [run.run_id for run in source.runs()]
        for done, run_id in enumerate(ids):
            if progress:
                progress(run_id, done, len(ids))
            added = _merge_run(target, source, run_id, packer)
            if added is None:
                differing.append(run_id)
            else:
                total = MergeSummary(**{name: count + getattr(added, name) for name, count in total})
    if differing:
        named_runs = ", ".join(differing[:_SHOWN]) + (", …" if len(differing) > _SHOWN else "")
        raise UsageError(
            f"{len(differing)} of {len(ids)} runs differ from this store's runs of the same id and were left out "
            f"({named_runs}); the others are merged. To take the source's, prune these runs here and merge again"
        )
    return total


def _merge_run(target: Store, source: Store, run_id: str, packer: Packer) -> MergeSummary | None:
    """What was added; None where the two runs contradict each other."""
    with _sound(f"run {run_id} of the source"):
        theirs = _read(source, run_id)
        if theirs is None or theirs.run["run_id"] != run_id:
            raise LookupError("its record is that of another run")
        _validate(theirs)
    ours = _read(target, run_id)
    if ours is None:
        travelled = RunRecord.model_validate(theirs.run).travelled().model_dump(mode="json")
        _write(target, theirs._replace(run=travelled), packer, is_new=True)
        return MergeSummary(runs=1, steps=len(theirs.steps), exchanges=len(theirs.exchanges))
    if any(theirs.run[name] != ours.run[name] for name in _SAME_RUN):
        return None
    steps, exchanges = _changed(theirs.steps, ours.steps), _changed(theirs.exchanges, ours.exchanges)
    if not steps and not exchanges or _progress(theirs) < _progress(ours):
        return MergeSummary(known_runs=1)
    if ours.run["finished_at"] == theirs.run["finished_at"] is not None and (
        steps.keys() & ours.steps.keys() or exchanges.keys() & ours.exchanges.keys()
    ):
        return None
    kept = {"settings": ours.run["settings"], "out": ours.run["out"], "status": "finished"}
    _write(target, theirs._replace(run=theirs.run | kept, steps=steps, exchanges=exchanges), packer, is_new=False)
    return MergeSummary(continued_runs=1, steps=len(steps), exchanges=len(exchanges))


@contextmanager
def _sound(what: str) -> Iterator[None]:
    """Raises: StoreError where a source does not hold what its tables say: SQLite keeps a value of any type in any column."""
    try:
        yield
    except (LookupError, TypeError, ValueError, AttributeError, RecursionError, MemoryError) as exc:
        raise StoreError(f"{what} is damaged ({type(exc).__name__}), which ends the merge", log=str(exc)) from exc


def _validate(stored: _StoredRun) -> None:
    """Raises: ValueError for a record that this version could not read again."""
    for kind, records in ((Observation, stored.observations), (Step, stored.steps), (Exchange, stored.exchanges)):
        for plain in records.values():
            kind.model_validate(plain)


def _progress(stored: _StoredRun) -> tuple[bool, str, int]:
    """How far a run is: one that ended is further than one that did not, and a later end than an earlier one."""
    ended = stored.run["finished_at"]
    return ended is not None, sortable(ended) if ended else "", len(stored.steps)


def _changed(theirs: Mapping[K, Plain], ours: Mapping[K, Plain]) -> dict[K, Plain]:
    """Those of theirs that we lack or hold differently. NaN equals NaN here."""
    return {key: plain for key, plain in theirs.items() if key not in ours or digest(plain, 64) != digest(ours[key], 64)}


def _read(store: Store, run_id: str) -> _StoredRun | None:
    with store.reading() as (connection, reader):
        row = connection.execute(select(tables.runs).where(tables.runs.c.run_id == run_id)).one_or_none()
        if row is None:
            return None
        steps = list(reader.steps(run_id, true()))
        exchanges = list(reader.exchanges(run_id))
        keys = {plain["observation_id"]: key for key, plain in steps}
        for plain in exchanges:
            _find_observation(connection, plain["observation_id"], keys)
        return _StoredRun(
            run=store.run(run_id).model_dump(mode="json"),
            observations={id_: reader.observation(key) for id_, key in keys.items()},
            steps={plain["index"]: plain for _, plain in steps},
            exchanges={(plain["round"], plain["sample"], plain["turn"]): plain for plain in exchanges},
        )


def _find_observation(connection: Connection, id_: str, keys: dict[str, int]) -> None:
    """Adds the observation of an exchange that led to no step, where the store has it."""
    if id_ not in keys and (key := OBSERVATIONS.find(connection, named(id_))) is not None:
        keys[id_] = key


def _write(target: Store, stored: _StoredRun, packer: Packer, *, is_new: bool) -> None:
    """One transaction. Observations are written as the run made them, so that each refers to the one before."""
    run_id, missing = stored.run["run_id"], dict(stored.observations)
    try:
        with target.writing() as connection:
            writer = PlainWriter(connection, packer)
            if is_new:
                writer.start_run(stored.run)
            else:
                writer.update_run(stored.run)
            for step in (stored.steps[index] for index in sorted(stored.steps)):
                _write_observation(writer, run_id, step["observation_id"], missing)
                writer.record_step(step)
            for place in sorted(stored.exchanges):
                _write_observation(writer, run_id, stored.exchanges[place]["observation_id"], missing)
                writer.record_exchange(run_id, stored.exchanges[place])
    except BaseException:
        packer.forget()
        raise


def _write_observation(writer: PlainWriter, run_id: str, id_: str, missing: dict[str, Plain]) -> None:
    if id_ in missing:
        writer.record_observation(run_id, id_, missing.pop(id_))


@contextmanager
def _opened(source: str) -> Iterator[Store]:
    """The source, or a copy of a file of an older version or on a network file system. Raises: UsageError, StoreError."""
    url = _url(source)
    if url.get_backend_name() != "sqlite":
        if _is_older(url):
            where = shown_address(url)
            raise StoreError(f"store {where} is of an older version; open it once with CUDAL2_STORE to migrate it, then merge")
        with open_store(str(source)) as store:
            yield store
        return
    path = Path(url.database or "")
    if not path.is_file():
        raise UsageError(f"there is no store at {path}; name an SQLite file or an SQLAlchemy URL")
    _refuse_programs(path)
    mount = mount_of(path)
    if not _is_older(url) and not (mount and mount.shared):
        with open_store(url.render_as_string(hide_password=False)) as store:
            yield store
        return
    with tempfile.TemporaryDirectory(prefix="cudal2-merge-") as folder:
        copy = Path(folder, "store.sqlite")
        _copy(path, copy)
        with open_store(f"sqlite:///{copy}") as store:
            yield store


def _refuse_programs(path: Path) -> None:
    """A store has tables and indexes only. Views and triggers would run what a stranger wrote. Raises: StoreError."""
    try:
        with closing(sqlite3.connect(f"{path.absolute().as_uri()}?mode=ro", uri=True)) as source:
            found = source.execute("SELECT name FROM sqlite_master WHERE type NOT IN ('table', 'index') LIMIT 1").fetchone()
    except (sqlite3.Error, UnicodeDecodeError):  # opening it says what is wrong
        return
    if found is not None:
        raise StoreError(f"store {path} has a view or a trigger ({found[0]!r}), which no store of this product has")


def _url(source: str) -> URL:
    """An address without a scheme is a file."""
    if "://" not in source:
        if "?" in source:
            raise UsageError(f"{source!r} has a question mark, which an SQLAlchemy URL cannot hold; rename the file")
        return URL.create("sqlite", database=source)
    try:
        return make_url(source)
    except ArgumentError as exc:
        raise UsageError(f"{source!r} is neither an SQLite file nor an SQLAlchemy URL like sqlite:///runs.sqlite") from exc


def _is_older(url: URL) -> bool:
    """Whether opening the store would migrate it. What is no store is not older: opening it says what is wrong."""
    options: dict[str, Any] = {}
    if url.get_backend_name() == "sqlite":
        options = {"creator": partial(connect_reader, Path(url.database or ""), BUSY_TIMEOUT_S)}
    engine = None
    try:
        engine = create_engine(url, **options)
        with engine.connect() as connection:
            names = set(inspect(connection).get_table_names())
            if tables.migration.name not in names:
                return tables.meta.name in names
            version = connection.execute(select(tables.migration.c.version_num)).scalar_one_or_none()
            return version is not None and version < tables.VERSION
    except (SQLAlchemyError, ModuleNotFoundError):
        return False
    finally:
        if engine is not None:
            engine.dispose()


def _copy(path: Path, copy: Path) -> None:
    """A copy of an SQLite file, with what is still in its write-ahead log."""
    try:
        with closing(connect_reader(path, BUSY_TIMEOUT_S)) as source, closing(sqlite3.connect(copy)) as target:
            source.backup(target)
    except (sqlite3.Error, OSError) as exc:
        raise StoreError(f"store {path} cannot be copied to migrate it ({exc}); check the space for temporary files") from exc
