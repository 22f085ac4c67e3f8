"""Evaluations kept in a small SQLite file, so that a candidate is evaluated once.

Covered: several threads and processes, forks, a process that is killed while it writes, a damaged file or one of another
version (it is made anew), a disk that is full and a folder that cannot be written (scores go on without the file).
Not covered: a file that grows without limit. It may be deleted at any time.
"""

import sqlite3
import zlib
from collections.abc import Callable, Sequence
from contextlib import closing
from pathlib import Path
from typing import TypeVar

from filelock import FileLock
from pydantic import TypeAdapter, ValidationError

from cudal2_agent.contract.events import Emit, Notice, ignore
from cudal2_agent.contract.records.evaluation import Evaluation

FORMAT = 1  # raise it when the table changes
BUSY_TIMEOUT_S = 10.0
_DAMAGED = (sqlite3.SQLITE_CORRUPT, sqlite3.SQLITE_NOTADB)
_EVALUATIONS: TypeAdapter[Evaluation] = TypeAdapter(Evaluation)
T = TypeVar("T")


class _OtherVersion(Exception):
    pass


class ScoreCache:
    """Evaluations by key. A connection lasts for one call, so that threads and forked processes share none."""

    def __init__(self, path: Path, emit: Emit = ignore) -> None:
        self._path, self._emit = path, emit
        self._told: set[str] = set()

    def find(self, keys: Sequence[str]) -> dict[str, Evaluation]:
        """What is known of these keys. An entry that cannot be read is not known."""

        def look_up(connection: sqlite3.Connection) -> dict[str, Evaluation]:
            rows = {key: connection.execute("SELECT evaluation FROM scores WHERE key = ?", (key,)).fetchone() for key in keys}
            read = {key: _read(row[0]) for key, row in rows.items() if row is not None}
            return {key: evaluation for key, evaluation in read.items() if evaluation is not None}

        return self._used(look_up, {}) if keys else {}

    def keep(self, key: str, evaluation: Evaluation) -> None:
        """Durable when the method returns, unless the file cannot be written."""
        content = zlib.compress(_EVALUATIONS.dump_json(evaluation))

        def write(connection: sqlite3.Connection) -> None:
            with connection:
                connection.execute("INSERT OR REPLACE INTO scores VALUES (?, ?)", (key, content))

        self._used(write, None)

    def _used(self, use: Callable[[sqlite3.Connection], T], otherwise: T) -> T:
        """What `use` returns of an open file; `otherwise` where the file cannot be used."""
        for _ in range(2):
            try:
                with closing(self._opened()) as connection:
                    return use(connection)
            except _OtherVersion:
                self._renew("is of another version")
            except sqlite3.DatabaseError as exc:
                if not _damaged(exc):
                    self._tell(f"scores are not kept in {self._path} ({exc}); free it or its disk")
                    break
                self._renew("is damaged")
            except OSError as exc:
                self._tell(
                    f"scores are not kept in {self._path} ({exc.strerror}); set CUDAL2_HOME to a folder that is writable"
                )
                break
        return otherwise

    def _opened(self) -> sqlite3.Connection:
        """Raises: _OtherVersion, sqlite3.DatabaseError, OSError."""
        self._path.parent.mkdir(parents=True, exist_ok=True)
        connection = sqlite3.connect(self._path, timeout=BUSY_TIMEOUT_S)
        try:
            if _version(connection) != FORMAT:
                _begin(connection)
        except BaseException:
            connection.close()
            raise
        return connection

    def _renew(self, reason: str) -> None:
        """Deletes the file, unless another process has done so."""
        with FileLock(self._path.with_name(f"{self._path.name}.lock")):
            if self._sound():
                return
            for name in (self._path.name, f"{self._path.name}-journal"):
                self._path.with_name(name).unlink(missing_ok=True)
        self._tell(f"{self._path} {reason}; it is made anew, and candidates are evaluated again")

    def _sound(self) -> bool:
        try:
            with closing(self._opened()) as connection:
                return bool(connection.execute("PRAGMA quick_check(1)").fetchone() == ("ok",))
        except (_OtherVersion, sqlite3.DatabaseError):
            return False

    def _tell(self, message: str) -> None:
        """Once for each message."""
        if message not in self._told:
            self._told.add(message)
            self._emit(Notice(message=message))


def _version(connection: sqlite3.Connection) -> int:
    return int(connection.execute("PRAGMA user_version").fetchone()[0])


def _begin(connection: sqlite3.Connection) -> None:
    """The table of a new file, whole or not at all. Raises: _OtherVersion where the file is not new."""
    connection.execute("BEGIN IMMEDIATE")
    with connection:
        if _version(connection) == FORMAT:
            return  # another process was first
        if connection.execute("SELECT count(*) FROM sqlite_master").fetchone() != (0,):
            raise _OtherVersion
        connection.execute("CREATE TABLE scores (key TEXT PRIMARY KEY, evaluation BLOB NOT NULL) WITHOUT ROWID")
        connection.execute(f"PRAGMA user_version = {FORMAT}")


def _damaged(error: sqlite3.DatabaseError) -> bool:
    return getattr(error, "sqlite_errorcode", 0) & 0xFF in _DAMAGED


def _read(content: bytes) -> Evaluation | None:
    try:
        return _EVALUATIONS.validate_json(zlib.decompress(content))
    except (zlib.error, ValidationError, TypeError):
        return None
