"""The compile cache: content-addressed folders, built aside and renamed whole, checked against their hashes when read.

Covered: several processes and threads at once, a process killed while it writes, a damaged or half-deleted entry.
Not covered: somebody with write access to the cache who also forges the hashes.
"""

import contextlib
import hashlib
import os
import shutil
import tempfile
import time
from collections.abc import Mapping
from pathlib import Path

from pydantic import ValidationError

from cudal2_agent.contract.base import Record
from cudal2_agent.contract.errors import MachineError

_ENTRY = "entry.json"
_BUILDING = "building-"
_ABANDONED_S = 24 * 3600
FORMAT = 2  # part of every key; raise it when an entry's meaning changes


class CacheEntry(Record):
    """What one compilation left. `files`: each file's SHA-256. `compiled`: False where the compiler refused the source."""

    compiled: bool
    seconds: float
    files: dict[str, str]


class CompileCache:
    """Entries by key under one folder, `<first two digits>/<key>/`."""

    def __init__(self, folder: Path) -> None:
        self._folder = folder

    def path(self, key: str) -> Path:
        return self._folder / key[:2] / key

    def load(self, key: str) -> CacheEntry | None:
        """The entry of a key. None where there is none, or where it is damaged and was moved away."""
        folder = self.path(key)
        try:
            entry = CacheEntry.model_validate_json((folder / _ENTRY).read_bytes())
            intact = all(sha256_of(folder / name) == expected for name, expected in entry.files.items())
        except FileNotFoundError:
            entry, intact = None, not folder.exists()
        except (OSError, ValidationError):
            entry, intact = None, False
        if not intact:
            self._discard(folder)
        return entry if intact else None

    def save(self, key: str, files: Mapping[str, bytes], *, compiled: bool, seconds: float) -> None:
        """Store an entry as a whole. If another process stored it first, that entry stays. Raises: MachineError."""
        hashes = {name: hashlib.sha256(content).hexdigest() for name, content in files.items()}
        entry = CacheEntry(compiled=compiled, seconds=seconds, files=hashes)
        folder = self.path(key)
        try:
            building = self.scratch()
            for name, content in files.items():
                (building / name).write_bytes(content)
            (building / _ENTRY).write_text(entry.model_dump_json())
            folder.parent.mkdir(exist_ok=True)
            try:
                os.rename(building, folder)
            except OSError:
                if self.load(key) is None:  # no other process stored it: the folder is not writable
                    raise
                shutil.rmtree(building, ignore_errors=True)
        except OSError as exc:
            raise MachineError(
                f"the compile cache {self._folder} is not writable: {exc}; free it, or set CUDAL2_HOME to another"
            ) from exc

    def scratch(self) -> Path:
        """A fresh private folder on the cache's file system. Raises: MachineError."""
        try:
            self._folder.mkdir(parents=True, exist_ok=True)
            return Path(tempfile.mkdtemp(prefix=_BUILDING, dir=self._folder))
        except OSError as exc:
            raise MachineError(
                f"the compile cache {self._folder} is not writable: {exc}; free it, or set CUDAL2_HOME to another"
            ) from exc

    def sweep(self) -> None:
        """Remove folders that killed processes left half built, once they are old enough to belong to nobody."""
        for folder in self._folder.glob(f"{_BUILDING}*"):
            with contextlib.suppress(FileNotFoundError):  # its owner, or another sweep, was faster
                if time.time() - folder.stat().st_mtime > _ABANDONED_S:
                    shutil.rmtree(folder, ignore_errors=True)

    def _discard(self, folder: Path) -> None:
        """Remove a damaged entry. It is renamed first, so that no process reads it while it is deleted."""
        aside = self.scratch()
        with contextlib.suppress(FileNotFoundError):  # another process was faster
            os.rename(folder, aside / "damaged")
        shutil.rmtree(aside, ignore_errors=True)


def sha256_of(path: Path) -> str:
    """SHA-256 of a file. Raises: OSError."""
    with path.open("rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()
