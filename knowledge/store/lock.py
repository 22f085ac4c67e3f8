"""The write lock: one writer at a time, identified by its process id."""

import json
import os
from collections.abc import Iterator
from contextlib import contextmanager
from datetime import UTC, datetime
from pathlib import Path

from filelock import FileLock, Timeout

from cudal2_agent.contract.errors import KnowledgeBusy


@contextmanager
def write_lock(folder: Path) -> Iterator[None]:
    """Lock the folder for writing. The lock of a killed process is free at once.

    Raises: KnowledgeBusy with the holder's process id and start time; OSError if the folder is read-only.
    """
    lock = FileLock(folder / "write.lock", timeout=0, thread_local=False)
    owner = folder / "writer.json"
    try:
        lock.acquire()
    except Timeout as exc:
        raise KnowledgeBusy(
            f"knowledge base {folder} is being written by {_holder(owner)}; wait for it or stop it, then try again"
        ) from exc
    try:
        since = datetime.now(UTC).isoformat(timespec="seconds")
        owner.write_text(json.dumps({"pid": os.getpid(), "since": since}), encoding="utf-8")
        yield
    finally:
        owner.unlink(missing_ok=True)
        lock.release()


def _holder(owner: Path) -> str:
    try:
        record = json.loads(owner.read_text(encoding="utf-8"))
        return f"process {record['pid']} since {record['since']}"
    except (OSError, ValueError, KeyError, TypeError):  # the holder has just started or just finished
        return "another process"
