"""Reads an SQLite file where nothing can be written, such as a home on a read-only mount.

A database with a write-ahead log needs a file of shared memory beside it, which cannot be made there. Without a log the file
holds everything, and SQLite may assume that nothing changes it. A log that a killed writer left is read from a copy.
"""

import os
import shutil
import sqlite3
import tempfile
from contextlib import closing
from functools import cache
from pathlib import Path

_LEFT_OVER = ("-wal", "-journal")
_COPIES: list[tempfile.TemporaryDirectory[str]] = []  # removed when the process ends


def can_write(path: Path) -> bool:
    """Whether a database can be written, or made, together with the files that SQLite keeps beside it."""
    return os.access(path.parent, os.W_OK | os.X_OK) and (not path.exists() or os.access(path, os.W_OK))


def connect_reader(path: Path, timeout_s: float) -> sqlite3.Connection:
    """A connection for any thread that cannot write. A database that is missing is an empty one.

    Raises: sqlite3.Error, OSError.
    """
    if not path.exists():
        return _connect(":memory:", timeout_s)
    if can_share(path):
        return _connect(f"{path.absolute().as_uri()}?mode=ro", timeout_s)
    beside = [path.with_name(path.name + suffix) for suffix in _LEFT_OVER]
    left = [one for one in beside if one.exists() and one.stat().st_size]
    whole = _whole_copy(path, tuple(left), path.stat().st_mtime_ns, *(one.stat().st_mtime_ns for one in left)) if left else path
    return _connect(f"{whole.absolute().as_uri()}?mode=ro&immutable=1", timeout_s)


def can_share(path: Path) -> bool:
    """Whether SQLite can create the shared-memory file that readers of a write-ahead log need."""
    shm = path.with_name(path.name + "-shm")
    try:
        made = not shm.exists()
        shm.open("ab").close()
        if made:
            shm.unlink(missing_ok=True)
    except OSError:
        return False
    return True


@cache
def _whole_copy(path: Path, left: tuple[Path, ...], *_: int) -> Path:
    """A copy of a database into which SQLite has taken up what was left over."""
    folder = _temporary()
    for one in (path, *left):
        shutil.copyfile(one, folder / one.name)
    copy = folder / path.name
    with closing(sqlite3.connect(copy)) as connection:
        connection.execute("PRAGMA journal_mode=DELETE").fetchall()
    return copy


@cache
def copied_folder(folder: Path, changed_ns: int) -> Path:  # noqa: ARG001 (another time is another copy)
    """A copy that can be written of a folder that a library opens for writing only. Raises: OSError."""
    return Path(shutil.copytree(folder, _temporary() / folder.name, copy_function=shutil.copyfile))


def _temporary() -> Path:
    _COPIES.append(tempfile.TemporaryDirectory(prefix="cudal2-read-"))
    return Path(_COPIES[-1].name)


def _connect(address: str, timeout_s: float) -> sqlite3.Connection:
    connection = sqlite3.connect(address, uri=True, timeout=timeout_s, check_same_thread=False)
    connection.isolation_level = None
    return connection
