"""The state that travels from node to node and into the file of checkpoints: positions and records as plain JSON values.

The history of a run is in the trajectory store, not in the state. Because the values are plain, reading a checkpoint builds
no object, and a tampered checkpoint file cannot run code.
"""

import sqlite3
from collections.abc import Iterator
from contextlib import closing, contextmanager
from pathlib import Path
from typing import Any, Literal, TypedDict

from langgraph.checkpoint.serde.jsonplus import JsonPlusSerializer
from langgraph.checkpoint.sqlite import SqliteSaver

from cudal2_agent.contract.errors import StoreError
from cudal2_agent.contract.file_system import require_local

Json = dict[str, Any]
Phase = Literal["search", "final"]
BUSY_TIMEOUT_S = 10.0


class RunState(TypedDict):
    """`batch`: candidates of the round, or of the race. `next_index`: of the step after the recorded ones.

    `empty_rounds`: consecutive rounds without a candidate. `stop`: why the search ended; empty while it goes on.
    """

    phase: Phase
    round: int
    next_index: int
    spent_s: float
    propose_s: float
    empty_rounds: int
    observation_id: str
    batch: list[Json]
    stop: str


def initial_state(rounds_done: int = 0) -> RunState:
    return {
        "phase": "search",
        "round": rounds_done,
        "next_index": 0,
        "spent_s": 0.0,
        "propose_s": 0.0,
        "empty_rounds": 0,
        "observation_id": "",
        "batch": [],
        "stop": "",
    }


@contextmanager
def open_checkpoints(path: Path) -> Iterator[SqliteSaver]:
    """Raises: UsageError on a network file system; StoreError where the file cannot be opened, is locked or is corrupt, on
    opening or later on.
    """
    require_local(path, "checkpoints")
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
