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

from contract.base import Record
from contract.errors import MachineError

_ENTRY = "entry.json"
_BUILDING = "building-"
_ABANDONED_S = 24 * 3600
FORMAT = 2  # part of every key: raise it when an entry's meaning changes


class Entry(Record):
    """What a compilation left: `files` maps each file of the entry to its SHA-256; `compiled` is False for a refusal."""

    compiled: bool
    seconds: float
    files: dict[str, str]


class CompileCache:
    """Entries by key under one folder, `<first two digits>/<key>/`."""

    def __init__(self, folder: Path) -> None:
        self._folder = folder

    def path(self, key: str) -> Path:
        return self._folder / key[:2] / key

    def load(self, key: str) -> Entry | None:
        """The entry of a key, or None where there is none or it is damaged (it is then moved out of the way)."""
        folder = self.path(key)
        try:
            entry = Entry.model_validate_json((folder / _ENTRY).read_bytes())
            intact = all(sha256_of(folder / name) == expected for name, expected in entry.files.items())
        except FileNotFoundError:
            entry, intact = None, not folder.exists()
        except (OSError, ValidationError):
            entry, intact = None, False
        if not intact:
            self._discard(folder)
        return entry if intact else None

    def save(self, key: str, files: Mapping[str, bytes], *, compiled: bool, seconds: float) -> None:
        """Store an entry whole. Where another process was first, its entry stays. Raises: MachineError."""
        hashes = {name: hashlib.sha256(content).hexdigest() for name, content in files.items()}
        entry = Entry(compiled=compiled, seconds=seconds, files=hashes)
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
                if self.load(key) is None:  # not beaten by another process but in truth unwritable
                    raise
                shutil.rmtree(building, ignore_errors=True)
        except OSError as exc:
            raise MachineError(
                f"the compile cache {self._folder} is not writable: {exc}; free or choose another folder"
            ) from exc

    def scratch(self) -> Path:
        """A fresh private folder on the cache's file system. Raises: MachineError."""
        try:
            self._folder.mkdir(parents=True, exist_ok=True)
            return Path(tempfile.mkdtemp(prefix=_BUILDING, dir=self._folder))
        except OSError as exc:
            raise MachineError(
                f"the compile cache {self._folder} is not writable: {exc}; free or choose another folder"
            ) from exc

    def sweep(self) -> None:
        """Remove what processes that were killed left half built, once it is certain that nobody works on it."""
        for folder in self._folder.glob(f"{_BUILDING}*"):
            with contextlib.suppress(FileNotFoundError):  # its owner, or another sweep, was quicker
                if time.time() - folder.stat().st_mtime > _ABANDONED_S:
                    shutil.rmtree(folder, ignore_errors=True)

    def _discard(self, folder: Path) -> None:
        """Remove a damaged entry: renamed first, so that nobody sees it half gone."""
        aside = self.scratch()
        with contextlib.suppress(FileNotFoundError):  # another process was quicker
            os.rename(folder, aside / "damaged")
        shutil.rmtree(aside, ignore_errors=True)


def sha256_of(path: Path) -> str:
    """SHA-256 of a file. Raises: OSError."""
    with path.open("rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()
