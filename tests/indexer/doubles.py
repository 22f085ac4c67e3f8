"""Doubles for the indexer: a store in memory, failing splitters, and an event recorder."""

import os
import signal
import time
from collections.abc import Callable, Collection, Iterable, Iterator
from hashlib import sha256

from cudal2_agent.contract.base import digest
from cudal2_agent.contract.events import Event, IndexProgress, Notice
from cudal2_agent.contract.records.knowledge import Piece, Release, SplitFile, StoreCounts

SPLITTER = "lines 1"


class MemoryStore:
    """A `KnowledgeStore` in dictionaries. `calls`: the writes in their order."""

    def __init__(self, batch: int = 3, fail: Callable[[int], None] = lambda _: None) -> None:
        self.files: dict[str, SplitFile] = {}
        self.published: dict[str, tuple[Release, dict[str, str]]] = {}
        self.calls: list[str] = []
        self._batch = batch
        self._fail = fail

    def releases(self) -> list[Release]:
        return [release for release, _ in self.published.values()]

    def manifest(self, release: str) -> dict[str, str]:
        return dict(self.published[release][1]) if release in self.published else {}

    def held(self, keys: Collection[str]) -> set[str]:
        return set(keys) & self.files.keys()

    def stage(self, files: Iterable[SplitFile], advance: Callable[[StoreCounts], None]) -> StoreCounts:
        total = 0
        for index, file in enumerate(files):
            self._fail(index)
            self.calls.append(f"stage {file.path}")
            self.files[file.key] = file
            total += len(file.pieces)
            if (index + 1) % self._batch == 0:
                advance(StoreCounts(pieces=1, embedded=1))
        return StoreCounts(pieces=total, embedded=total)

    def publish(self, release: Release, keys: dict[str, str]) -> None:
        assert set(keys.values()) <= self.files.keys()
        self.calls.append(f"publish {release.name}")
        pieces = sum(len(self.files[key].pieces) for key in keys.values())
        self.published[release.name] = (release.model_copy(update={"pieces": pieces}), dict(keys))

    def remove(self, release: str) -> None:
        del self.published[release]

    def pieces(self, release: str) -> Iterator[tuple[str, Piece, str]]:
        for path, key in sorted(self.manifest(release).items()):
            file = self.files[key]
            lines = file.text.split("\n")
            for piece in file.pieces:
                yield path, piece, digest("\n".join(lines[piece.start_line - 1 : piece.end_line]))

    def verify(self) -> list[str]:
        return []

    def collect(self) -> int:
        self.calls.append("collect")
        listed = {key for _, keys in self.published.values() for key in keys.values()}
        gone = self.files.keys() - listed
        for key in gone:
            del self.files[key]
        return len(gone)


class Heard:
    """An `Emit` that records the events."""

    def __init__(self) -> None:
        self.events: list[Event] = []

    def __call__(self, event: Event) -> None:
        self.events.append(event)

    @property
    def notices(self) -> list[str]:
        return [event.message for event in self.events if isinstance(event, Notice)]

    def progress(self, stage: str) -> list[tuple[int, int | None]]:
        return [(event.done, event.total) for event in self.events if isinstance(event, IndexProgress) and event.stage == stage]


def split_whole(path: str, data: bytes) -> SplitFile:
    """One piece per file."""
    text = data.decode("utf-8", "replace")
    end = max(text.count("\n"), 1)
    piece = Piece(start_line=1, end_line=end, symbol=path, kind="function", definition=(1, end))
    return SplitFile(path=path, sha256=sha256(data).hexdigest(), splitter="other", text=text, pieces=(piece,))


def split_badly(path: str, data: bytes) -> SplitFile:
    """Dies, hangs or fails on a file whose name says so."""
    if "dies" in path:
        os.kill(os.getpid(), signal.SIGKILL)
    if "exits" in path:
        os._exit(3)
    if "hangs" in path:
        time.sleep(600)
    if "fails" in path:
        raise RecursionError("too deep\nfor this")
    return split_whole(path, data)
