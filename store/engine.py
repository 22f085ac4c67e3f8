"""Opens the store's database: creates or migrates it, checks its version, and lets several processes write in turns."""

import logging
import random
import re
import sqlite3
import time
from collections.abc import Iterator
from contextlib import contextmanager
from functools import partial
from pathlib import Path
from typing import Any

from sqlalchemy import Connection, Engine, StaticPool, create_engine, event, func, insert, inspect, select
from sqlalchemy.engine import URL, make_url
from sqlalchemy.exc import ArgumentError, DataError, NoSuchModuleError, OperationalError, SQLAlchemyError

from cudal2_agent.contract.errors import StoreError
from cudal2_agent.contract.file_system import REMEDY, require_local
from cudal2_agent.store.read_only import can_write, connect_reader
from cudal2_agent.store.tables import SCHEMA, VERSION, meta, metadata, migration

BUSY_TIMEOUT_S = 120.0  # an import of 50,000 steps is one transaction and takes about a minute
MAX_VALUE_BYTES = 64 * 1024**2  # of a text or a blob of SQLite
DIALECTS = ("sqlite", "postgresql")
_BEGIN = "cudal2_begin"  # execution option: the statement that begins a transaction in SQLite; empty for none
_BEGIN_WRITING = "BEGIN IMMEDIATE"
_READ_ONLY = "cudal2_read_only"  # execution option of an engine whose file cannot be written
_ASK_S = 0.002  # maximum time between two requests for SQLite's write lock
_WRITER = 0xC0DA12  # PostgreSQL's advisory lock of the process that writes
_FIRST = "0001"  # the migration that a store of version 0.1 has had

_log = logging.getLogger(__name__)


def open_engine(url: str, busy_timeout_s: float = BUSY_TIMEOUT_S) -> Engine:
    """An engine over a database that holds this version's tables. A database of an older version is migrated.

    Where a file cannot be written, it can be read, and one that is missing is empty; what writes is told so.
    Raises: UsageError for a file on a network file system; StoreError where the address is wrong, or the database is
    unreachable, locked, corrupt, not a store or of a newer version. An existing file is not changed then.
    """
    engine = _create(url, busy_timeout_s)
    try:
        with translated(engine.url):
            _prepare(engine, busy_timeout_s)
    except StoreError:
        engine.dispose()
        raise
    return engine


@contextmanager
def writing(engine: Engine) -> Iterator[Connection]:
    """A transaction that waits for other writers at its start, instead of failing later."""
    with engine.execution_options(**{_BEGIN: _BEGIN_WRITING}).begin() as connection:
        if engine.dialect.name == "postgresql":
            connection.execute(select(func.pg_advisory_xact_lock(_WRITER)))
        yield connection


def compact(engine: Engine) -> None:
    """Gives free space back to the disk. It needs as much space again while it runs."""
    sqlite = engine.dialect.name == "sqlite"
    options: dict[str, Any] = {_BEGIN: ""} if sqlite else {"isolation_level": "AUTOCOMMIT"}
    with engine.execution_options(**options).connect() as connection:
        connection.exec_driver_sql("VACUUM" if sqlite else "VACUUM FULL")


@contextmanager
def translated(url: URL) -> Iterator[None]:
    """Turns errors of the database library into a `StoreError` with a remedy."""
    where = shown_address(url)
    try:
        yield
    except OperationalError as exc:
        if "locked" in str(exc.orig):
            raise StoreError(f"store {where} is locked by another process; wait for it or stop it, then try again") from exc
        raise StoreError(
            f"store {where} cannot be used ({_first_line(exc)}); check the path, its permissions and space"
        ) from exc
    except (DataError, UnicodeEncodeError) as exc:
        raise StoreError(f"store {where} cannot hold this text or number ({_first_line(exc)}); nothing was written") from exc
    except (SQLAlchemyError, UnicodeDecodeError) as exc:  # the second is SQLite's message about a damaged definition
        raise StoreError(
            f"store {where} is damaged or not a store ({_first_line(exc)}); it was left untouched: "
            "move it away or point CUDAL2_STORE elsewhere"
        ) from exc


def shown_address(url: URL) -> str:
    """An address for a message, without its password."""
    hidden = {name: "***" for name in url.query if name == "password"}
    return url.update_query_dict(hidden).render_as_string(hide_password=True)


def _create(url: str, busy_timeout_s: float) -> Engine:
    try:
        parsed = make_url(url)
        kind = parsed.get_backend_name()
        if kind not in DIALECTS:
            raise StoreError(f"store {kind}:// is not supported; use sqlite:///FILE or postgresql+psycopg://HOST/DATABASE")
        sqlite = kind == "sqlite"
        options: dict[str, Any] = {"connect_args": {"timeout": busy_timeout_s}} if sqlite else {}
        named = (parsed.database or "").removeprefix("file:")
        if sqlite and named and not named.startswith(":memory:"):
            require_local(Path(named), "store", f"{REMEDY}, or CUDAL2_STORE to a PostgreSQL address")
        if sqlite and parsed.database and not parsed.database.startswith((":memory:", "file:")):
            file = Path(parsed.database)
            file.parent.mkdir(parents=True, exist_ok=True)
            if not can_write(file):
                options = {"creator": partial(connect_reader, file, busy_timeout_s), "execution_options": {_READ_ONLY: True}}
                options |= {} if file.exists() else {"poolclass": StaticPool}  # all see the one that is in memory
        engine = create_engine(parsed, **options)
    except (ArgumentError, NoSuchModuleError) as exc:
        raise StoreError(f"store address is not an SQLAlchemy URL like sqlite:///runs.sqlite ({_first_line(exc)})") from exc
    except ModuleNotFoundError as exc:
        raise StoreError(f"store needs the package {exc.name!r}; for PostgreSQL: pip install 'cudal2-agent[postgres]'") from exc
    except OSError as exc:
        raise StoreError(
            f"store folder {exc.filename} cannot be created: {exc.strerror}; set CUDAL2_HOME to one that can be written"
        ) from exc
    if sqlite:
        event.listen(engine, "connect", _on_sqlite_connect)
        event.listen(engine, "begin", partial(_on_sqlite_begin, busy_timeout_s=busy_timeout_s))
    return engine


def _on_sqlite_connect(connection: Any, _: Any) -> None:
    connection.isolation_level = None  # transactions are begun by _on_sqlite_begin, not by the driver
    connection.execute("PRAGMA foreign_keys=ON")
    connection.execute("PRAGMA trusted_schema=OFF")
    connection.setlimit(sqlite3.SQLITE_LIMIT_LENGTH, MAX_VALUE_BYTES)


def _on_sqlite_begin(connection: Connection, busy_timeout_s: float) -> None:
    begin = connection.get_execution_options().get(_BEGIN, "BEGIN")
    if begin == _BEGIN_WRITING:
        _as_soon_as_free(_BEGIN_WRITING, connection, busy_timeout_s)
    elif begin:
        connection.exec_driver_sql(begin)


def _as_soon_as_free(statement: str, connection: Connection, busy_timeout_s: float) -> None:
    """Runs a statement that needs SQLite's lock.

    SQLite itself asks only every 100 ms, and not at all to begin a write-ahead log. A writer that pauses for less between its
    transactions would keep all others out. Raises: OperationalError where the lock is not free in time.
    """
    driver: Any = connection.connection.dbapi_connection
    deadline = time.monotonic() + busy_timeout_s
    driver.execute("PRAGMA busy_timeout=0")
    try:
        while True:
            try:
                driver.execute(statement).fetchall()
            except sqlite3.OperationalError as exc:
                if exc.sqlite_errorcode & 0xFF != sqlite3.SQLITE_BUSY or time.monotonic() > deadline:
                    raise OperationalError(statement, None, exc) from exc
            else:
                return
            time.sleep(random.uniform(0, _ASK_S))
    finally:
        driver.execute(f"PRAGMA busy_timeout={1000 * busy_timeout_s:.0f}")


def _prepare(engine: Engine, busy_timeout_s: float) -> None:
    """Creates the tables in an empty database, and migrates those of an older version. It reads before it writes."""
    with engine.connect() as connection:
        version, empty = _version(connection, engine), not inspect(connection).get_table_names()
    read_only = engine.get_execution_options().get(_READ_ONLY, False)
    if version == VERSION:
        return
    if not empty and read_only:
        raise StoreError(
            f"store {shown_address(engine.url)} has version {version}, and where it cannot be written it is not brought to "
            f"{VERSION}; copy it to a folder of your own, and name the copy with CUDAL2_STORE"
        )
    if not empty:
        _migrate(engine)
        return
    _create_tables(engine, busy_timeout_s)
    if read_only:
        with engine.connect() as connection:
            connection.exec_driver_sql("PRAGMA query_only=ON")


def _version(connection: Connection, engine: Engine) -> str | None:
    """The migration that the database has had; None where it is empty. Raises: StoreError where this version cannot use it."""
    where = shown_address(engine.url)
    names = set(inspect(connection).get_table_names())
    if not names:
        return None
    if meta.name not in names:
        raise StoreError(f"{where} holds tables of another program ({min(names)}, …); point CUDAL2_STORE to another database")
    schema = connection.execute(select(meta.c.value).where(meta.c.key == "schema")).scalar_one_or_none()
    version = _FIRST if schema == "1" else None
    if migration.name in names:
        version = connection.execute(select(migration.c.version_num)).scalar_one_or_none()
    if not isinstance(version, str) or not re.fullmatch(r"\d{4}", version) or not _FIRST <= version <= VERSION:
        raise StoreError(f"store {where} has schema {version or schema}, this version reads {VERSION}; update cudal2-agent")
    return version


def _create_tables(engine: Engine, busy_timeout_s: float) -> None:
    if engine.dialect.name == "sqlite":
        with engine.execution_options(**{_BEGIN: ""}).connect() as connection:
            _as_soon_as_free("PRAGMA journal_mode=WAL", connection, busy_timeout_s)
    with writing(engine) as connection:
        if not inspect(connection).has_table(meta.name):  # another process may have created it
            metadata.create_all(connection)
            connection.execute(insert(meta).values(key="schema", value=SCHEMA))
            connection.execute(insert(migration).values(version_num=VERSION))


def _migrate(engine: Engine) -> None:
    """Runs the migrations that are missing, all in one transaction. Another process may have done so in the meantime."""
    from alembic import command
    from alembic.config import Config

    where = shown_address(engine.url)
    with writing(engine) as connection:
        version = _version(connection, engine)
        if version == VERSION:
            return
        _log.warning("store %s is brought from version %s to %s; this is done once", where, version, VERSION)
        config = Config(attributes={"connection": connection})
        config.set_main_option("script_location", str(Path(__file__).parent / "migrations").replace("%", "%%"))
        command.upgrade(config, "head")
    if engine.dialect.name == "sqlite" and version == _FIRST:  # later migrations free no space
        compact(engine)


def _first_line(exc: Exception) -> str:
    cause = getattr(exc, "orig", None) or exc
    return str(cause).splitlines()[0] if str(cause) else type(cause).__name__
