"""The checkpoints of the graph: a SQLite file in the home folder. It holds plain values; nothing is unpickled from it."""

import sqlite3
from collections.abc import Iterator
from contextlib import closing, contextmanager
from pathlib import Path

from langgraph.checkpoint.serde.jsonplus import JsonPlusSerializer
from langgraph.checkpoint.sqlite import SqliteSaver

from cudal2_agent.contract.errors import StoreError

BUSY_TIMEOUT_S = 10.0


@contextmanager
def open_checkpoints(path: Path) -> Iterator[SqliteSaver]:
    """Raises: StoreError where the file cannot be opened, is locked or is corrupt, on opening or later on."""
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
    except OSError as exc:
        raise StoreError(f"folder {path.parent} cannot be made ({exc.strerror}); set CUDAL2_HOME to one that can") from exc
    serializer = JsonPlusSerializer(pickle_fallback=False, allowed_json_modules=None, allowed_msgpack_modules=None)
    try:
        with closing(sqlite3.connect(path, check_same_thread=False, timeout=BUSY_TIMEOUT_S)) as connection:
            saver = SqliteSaver(connection, serde=serializer)
            saver.setup()
            # Survives a crash of the process but not of the machine. The store survives both and decides which steps exist.
            connection.execute("PRAGMA synchronous=NORMAL")
            yield saver
    except sqlite3.DatabaseError as exc:
        raise StoreError(
            f"checkpoints {path} cannot be used ({exc}); move the file away, or free it or its disk, then try again"
        ) from exc
