"""Generations of the lexical index. Each is a folder that is built aside, renamed, and kept while a reader may use it."""

import hashlib
import json
import os
import shutil
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import Any

from cudal2_agent.knowledge.lexical.lexical_index import IndexedPiece, build

_CONTENTS = "contents.json"


class Generations:
    def __init__(self, folder: Path) -> None:
        self._folder = folder

    def path(self, generation: int) -> Path:
        return self._folder / str(generation)

    def write(self, generation: int, entries: Iterable[IndexedPiece]) -> None:
        """Build a generation in a temporary folder and rename it. Raises: OSError, KnowledgeError."""
        building = self._folder / f"{generation}.building-{os.getpid()}"
        self._folder.mkdir(parents=True, exist_ok=True)
        shutil.rmtree(building, ignore_errors=True)
        building.mkdir()
        try:
            counted = _CountedPieces(entries)
            build(building, counted)
            contents = {"pieces": counted.count, "files": _checksums(building)}
            (building / _CONTENTS).write_text(json.dumps(contents), encoding="utf-8")
            shutil.rmtree(self.path(generation), ignore_errors=True)  # left by a run that was killed before its commit
            building.rename(self.path(generation))
        finally:
            shutil.rmtree(building, ignore_errors=True)

    def whole(self, generation: int) -> bool:
        """Whether every file of a generation exists with its size. No file is read."""
        contents = self._contents(generation)
        return contents is not None and all(
            _size(self.path(generation) / name) == size for name, (size, _) in contents["files"].items()
        )

    def intact(self, generation: int) -> bool:
        """Whether every file of a generation has its checksum."""
        contents = self._contents(generation)
        return self.whole(generation) and contents is not None and contents["files"] == _checksums(self.path(generation))

    def pieces(self, generation: int) -> int:
        contents = self._contents(generation)
        return int(contents["pieces"]) if contents else 0

    def prune(self, current: int) -> None:
        """Delete all generations except this one and the one before, and the folders of killed runs."""
        keep = {str(current), str(current - 1)}
        for path in self._folder.iterdir() if self._folder.is_dir() else ():
            if path.name not in keep:
                shutil.rmtree(path, ignore_errors=True)

    def _contents(self, generation: int) -> dict[str, Any] | None:
        try:
            contents: dict[str, Any] = json.loads((self.path(generation) / _CONTENTS).read_text(encoding="utf-8"))
            return contents
        except (OSError, ValueError):
            return None


class _CountedPieces:
    """Pieces that are counted while they are iterated."""

    def __init__(self, entries: Iterable[IndexedPiece]) -> None:
        self._entries = entries
        self.count = 0

    def __iter__(self) -> Iterator[IndexedPiece]:
        for entry in self._entries:
            self.count += 1
            yield entry


def _checksums(folder: Path) -> dict[str, list[Any]]:
    found = sorted(path for path in folder.rglob("*") if path.is_file() and path.name != _CONTENTS)
    return {path.relative_to(folder).as_posix(): [path.stat().st_size, _sha256(path)] for path in found}


def _sha256(path: Path) -> str:
    with path.open("rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()


def _size(path: Path) -> int:
    return path.stat().st_size if path.is_file() else -1
