"""The database `knowledge.sqlite`: one writer, readers with a snapshot, and errors in one line."""

import errno
import sqlite3
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any
from uuid import uuid4

from sqlalchemy import Connection, Engine, NullPool, create_engine, event, insert, inspect, select
from sqlalchemy.dialects.sqlite import insert as upsert
from sqlalchemy.exc import DBAPIError, SQLAlchemyError

from cudal2_agent.contract.errors import KnowledgeBusy, KnowledgeError
from cudal2_agent.knowledge.store.tables import FORMAT, meta, metadata
from cudal2_agent.store.read_only import connect_reader

FILE = "knowledge.sqlite"
_BUSY_S = 10.0
_FULL = "is out of space; free some and run the command again, which continues where it stopped"


def open_writer(folder: Path) -> Engine:
    """An engine for the folder's database, which is created if it is missing. Raises: KnowledgeError."""
    engine = create_engine(f"sqlite:///{folder / FILE}", connect_args={"timeout": _BUSY_S})
    event.listen(engine, "connect", _on_connect)
    event.listen(engine, "begin", _on_begin)
    try:
        with translated(folder):
            _create(engine, folder)
    except KnowledgeError:
        engine.dispose()
        raise
    return engine


def open_reader(folder: Path) -> Engine:
    """An engine that cannot write. Raises: KnowledgeError for a knowledge base that is missing, damaged or newer."""
    path = folder / FILE
    if not path.is_file():
        raise KnowledgeError(f"no knowledge base in {folder}; make one: cudal2-agent index add 4.2.0")
    engine = create_engine("sqlite://", creator=lambda: connect_reader(path, _BUSY_S), poolclass=NullPool)
    event.listen(engine, "begin", _on_begin)
    with translated(folder), engine.connect() as connection:
        check_format(connection, folder)
    return engine


@contextmanager
def writing(engine: Engine) -> Iterator[Connection]:
    """A transaction that acquires the write lock at its start."""
    with engine.execution_options(cudal2_begin="BEGIN IMMEDIATE").begin() as connection:
        yield connection


@contextmanager
def translated(folder: Path) -> Iterator[None]:
    """Translates errors of SQLite and of the system into a `KnowledgeError` with a remedy."""
    try:
        yield
    except DBAPIError as exc:
        raise _from_sqlite(folder, exc.orig or exc) from exc
    except sqlite3.Error as exc:
        raise _from_sqlite(folder, exc) from exc
    except SQLAlchemyError as exc:
        raise _from_sqlite(folder, exc) from exc
    except OSError as exc:
        raise _from_system(folder, exc) from exc


def _from_sqlite(folder: Path, exc: BaseException) -> KnowledgeError:
    reason = str(exc).splitlines()[0] if str(exc) else type(exc).__name__
    if "full" in reason or "disk I/O" in reason:
        return KnowledgeError(f"knowledge base {folder}: the disk {_FULL} ({reason})")
    if "locked" in reason:
        return KnowledgeBusy(f"another process is writing knowledge base {folder}; wait for it, then try again")
    if "readonly" in reason or "unable to open" in reason:
        return KnowledgeError(f"knowledge base {folder} cannot be opened or written ({reason}); check its permissions")
    return KnowledgeError(
        f"knowledge base {folder} is damaged ({reason}); move the folder away and run: cudal2-agent index add 4.2.0"
    )


def _from_system(folder: Path, exc: OSError) -> KnowledgeError:
    if exc.errno in (errno.ENOSPC, errno.EDQUOT, errno.EFBIG):
        return KnowledgeError(f"knowledge base {folder}: the disk {_FULL} ({exc.strerror})")
    return KnowledgeError(f"knowledge base {folder}: {exc.strerror or exc}; check the path, its permissions and space")


def _on_connect(connection: Any, _: Any) -> None:
    connection.isolation_level = None  # transactions are begun by _on_begin, not by the driver
    connection.execute("PRAGMA foreign_keys=ON")
    connection.execute("PRAGMA synchronous=NORMAL")


def _on_begin(connection: Connection) -> None:
    begin = connection.get_execution_options().get("cudal2_begin", "BEGIN")
    if begin:
        connection.exec_driver_sql(begin)


def _create(engine: Engine, folder: Path) -> None:
    """Create the tables in an empty database; check the format of any other."""
    with engine.connect() as connection:
        if inspect(connection).get_table_names():
            check_format(connection, folder)
            return
    with engine.execution_options(cudal2_begin="").connect() as connection:
        connection.exec_driver_sql("PRAGMA journal_mode=WAL")
    with writing(engine) as connection:
        metadata.create_all(connection)
        values = {"format": str(FORMAT), "store": uuid4().hex[:12], "generation": "0", "collections": "0"}
        connection.execute(insert(meta), [{"key": key, "value": value} for key, value in values.items()])


def check_format(connection: Connection, folder: Path) -> None:
    """Raises: KnowledgeError if the tables belong to another program or a newer version; KnowledgeBusy if there are none."""
    tables = inspect(connection).get_table_names()
    if not tables:
        raise KnowledgeBusy(f"knowledge base {folder} is being created; wait for it, or make one: cudal2-agent index add 4.2.0")
    found = get(connection, "format") if meta.name in tables else ""
    if not found.isdigit():
        raise KnowledgeError(f"{folder / FILE} is not a knowledge base; set CUDAL2_KNOWLEDGE to another folder")
    if int(found) != FORMAT:
        raise KnowledgeError(
            f"knowledge base {folder} has format {found}, this version reads {FORMAT}; "
            "install the version that wrote it, or move the folder away and index again"
        )


def get(connection: Connection, key: str) -> str:
    """A value of the table `meta`; empty for a missing key."""
    return connection.execute(select(meta.c.value).where(meta.c.key == key)).scalar_one_or_none() or ""


def put(connection: Connection, **values: str) -> None:
    for key, value in values.items():
        statement = upsert(meta).values(key=key, value=value)
        connection.execute(statement.on_conflict_do_update(index_elements=["key"], set_={"value": value}))
