"""Opens the store's database: creates it, checks its tables and version, and configures SQLite for several processes."""

from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from sqlalchemy import Connection, Engine, create_engine, event, insert, inspect, select
from sqlalchemy.engine import URL, make_url
from sqlalchemy.exc import ArgumentError, NoSuchModuleError, OperationalError, SQLAlchemyError

from contract.errors import StoreError
from policies.trajectories.tables import SCHEMA_VERSION, meta, metadata

BUSY_TIMEOUT_S = 10.0
_BEGIN = "cudal2_begin"  # execution option: the statement that begins a transaction in SQLite; empty for none


def open_engine(url: str, busy_timeout_s: float = BUSY_TIMEOUT_S) -> Engine:
    """An engine over a database that holds this version's tables.

    Raises: StoreError where the address is wrong, or the database is unreachable, locked, corrupt, not a store or of
    another version. An existing file is not changed then.
    """
    engine = _create(url, busy_timeout_s)
    try:
        with translated(engine.url):
            _prepare(engine)
    except StoreError:
        engine.dispose()
        raise
    return engine


@contextmanager
def writing(engine: Engine) -> Iterator[Connection]:
    """A transaction that takes SQLite's write lock at its start, so that it waits for the lock instead of failing later."""
    with engine.execution_options(**{_BEGIN: "BEGIN IMMEDIATE"}).begin() as connection:
        yield connection


@contextmanager
def translated(url: URL) -> Iterator[None]:
    """Turns errors of the database library into a `StoreError` with a remedy."""
    where = url.render_as_string(hide_password=True)
    try:
        yield
    except OperationalError as exc:
        if "locked" in str(exc.orig):
            raise StoreError(f"store {where} is locked by another process; wait for it or stop it, then try again") from exc
        raise StoreError(
            f"store {where} cannot be used ({_first_line(exc)}); check the path, its permissions and space"
        ) from exc
    except SQLAlchemyError as exc:
        raise StoreError(
            f"store {where} is damaged or not a store ({_first_line(exc)}); it was left untouched: "
            "move it away or point CUDAL2_STORE elsewhere"
        ) from exc


def _create(url: str, busy_timeout_s: float) -> Engine:
    try:
        parsed = make_url(url)
        sqlite = parsed.get_backend_name() == "sqlite"
        if sqlite and parsed.database and parsed.database != ":memory:":
            Path(parsed.database).parent.mkdir(parents=True, exist_ok=True)
        engine = create_engine(parsed, connect_args={"timeout": busy_timeout_s} if sqlite else {})
    except (ArgumentError, NoSuchModuleError) as exc:
        raise StoreError(f"store address is not an SQLAlchemy URL like sqlite:///runs.sqlite ({_first_line(exc)})") from exc
    except ModuleNotFoundError as exc:
        raise StoreError(f"store needs the package {exc.name!r}; for PostgreSQL: pip install 'cudal2-agent[postgres]'") from exc
    except OSError as exc:
        raise StoreError(f"store folder {exc.filename} cannot be created: {exc.strerror}") from exc
    if sqlite:
        event.listen(engine, "connect", _on_sqlite_connect)
        event.listen(engine, "begin", _on_sqlite_begin)
    return engine


def _on_sqlite_connect(connection: Any, _: Any) -> None:
    connection.isolation_level = None  # transactions are begun by _on_sqlite_begin, not by the driver
    connection.execute("PRAGMA foreign_keys=ON")


def _on_sqlite_begin(connection: Connection) -> None:
    begin = connection.get_execution_options().get(_BEGIN, "BEGIN")
    if begin:
        connection.exec_driver_sql(begin)


def _prepare(engine: Engine) -> None:
    """Creates the tables in an empty database, and those that an older version lacks. It reads before it writes."""
    where = engine.url.render_as_string(hide_password=True)
    with engine.connect() as connection:
        tables = set(inspect(connection).get_table_names())
        version = _version(connection) if meta.name in tables else None
    if version is None and tables:
        raise StoreError(f"{where} holds tables of another program ({min(tables)}, …); point CUDAL2_STORE to another database")
    if version is not None and version != str(SCHEMA_VERSION):
        raise StoreError(
            f"store {where} has schema {version}, this version reads {SCHEMA_VERSION}; install the one that wrote it"
        )
    if version is None:
        _create_tables(engine)
    elif not tables >= set(metadata.tables):
        _add_tables(engine)


def _create_tables(engine: Engine) -> None:
    if engine.dialect.name == "sqlite":
        with engine.execution_options(**{_BEGIN: ""}).connect() as connection:
            connection.exec_driver_sql("PRAGMA journal_mode=WAL")
    with writing(engine) as connection:
        if not inspect(connection).has_table(meta.name):  # another process may have created it
            metadata.create_all(connection)
            connection.execute(insert(meta).values(key="schema", value=str(SCHEMA_VERSION)))


def _add_tables(engine: Engine) -> None:
    """Adds tables under a lock, SQLite's write lock or elsewhere that of a row, because another process may do the same."""
    with writing(engine) as connection:
        connection.execute(select(meta).with_for_update())
        metadata.create_all(connection)


def _version(connection: Connection) -> str | None:
    return connection.execute(select(meta.c.value).where(meta.c.key == "schema")).scalar_one_or_none()


def _first_line(exc: Exception) -> str:
    cause = getattr(exc, "orig", None) or exc
    return str(cause).splitlines()[0] if str(cause) else type(cause).__name__
