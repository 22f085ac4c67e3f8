"""From a tree to a published release: read, see what is held, split and stage the rest, publish, collect."""

import time
from collections.abc import Iterator, Sequence
from contextlib import closing
from datetime import UTC, datetime
from typing import Literal

from contract.base import Record
from contract.errors import SourceError
from contract.events import Emit, IndexProgress
from contract.knowledge import KnowledgeStore, Release, SplitFile, StoreCounts, file_key
from indexer.skips import Skips
from indexer.split.plain import split_plain
from indexer.tree import Tree
from indexer.walk import FileVersion, load, read_files
from indexer.workers import Outcome, Split, split_files

SPLIT_TIMEOUT_S = 120.0  # the longest header of CUTLASS takes 3 s of CPU; the machine may be busy
Stage = Literal["split", "embed"]


class Report(Record):
    """What indexing a tree took: of `files`, `split` were new and `reused` held already; `embedded` vectors were computed."""

    release: str
    files: int
    split: int
    reused: int
    pieces: int
    embedded: int
    skipped: int
    seconds: float


def index_tree(
    tree: Tree,
    store: KnowledgeStore,
    split: Split,
    splitter: str,
    emit: Emit,
    jobs: int,
    *,
    split_timeout_s: float = SPLIT_TIMEOUT_S,
) -> Report:
    """Make a tree a release of the store, which holds the old one until the new one is whole.

    `split` runs in other processes, so it must be importable there; `splitter` names it and its version.
    Raises: SourceError where there is nothing to index, KnowledgeError.
    """
    started = time.monotonic()
    versions, skipped = read_files(tree, emit)
    keys = {version.path: file_key(version.path, version.sha256, splitter) for version in versions}
    held = store.held(keys.values())
    missing = [version for version in versions if keys[version.path] not in held]
    batch = _Batch(tree, keys, splitter, emit)
    counts = _staged(batch, missing, store, split, jobs, split_timeout_s) if missing else StoreCounts()
    if not keys:
        raise SourceError(f"{tree.origin}: none of its files can be split; the notices say why")
    release = _published(tree, keys, splitter, store, emit)
    return Report(
        release=release.name,
        files=release.files,
        split=batch.done - batch.refused,
        reused=len(versions) - len(missing),
        pieces=release.pieces,
        embedded=counts.embedded,
        skipped=skipped + batch.refused,
        seconds=time.monotonic() - started,
    )


class _Batch:
    """The files being split: turns outcomes into file versions, keeps the keys true and counts."""

    def __init__(self, tree: Tree, keys: dict[str, str], splitter: str, emit: Emit) -> None:
        self.tree = tree
        self.keys = keys
        self.done = 0
        self.refused = 0
        self.embedded = 0
        self._splitter = splitter
        self.emit = emit
        self._skips = Skips()

    def splits(self, outcomes: Iterator[Outcome], total: int) -> Iterator[SplitFile]:
        self._tell("split", 0, total)
        for outcome in outcomes:
            self.done += 1
            split = self._file(outcome)
            self._tell("split", self.done, total)
            if split is None:
                self.refused += 1
                del self.keys[outcome.path]
            else:
                self.keys[outcome.path] = split.key  # another than read where the file has changed since
                yield split
        self._skips.tell(self.tree.name, self.emit)

    def advance(self, counts: StoreCounts) -> None:
        self.embedded += counts.embedded
        self._tell("embed", self.embedded, None)

    def _file(self, outcome: Outcome) -> SplitFile | None:
        if outcome.split is not None:
            return outcome.split.model_copy(update={"splitter": self._splitter})
        if outcome.unreadable:
            self._skips.add(f"skipped, {outcome.reason}", outcome.path)
            return None
        self._skips.add(f"split by lines only, {outcome.reason}; to try again, remove the release and add it", outcome.path)
        try:
            # Under the same key as if it had been split well: a file that hangs must not cost its time limit every run.
            return split_plain(outcome.path, load(self.tree.root, outcome.path)).model_copy(update={"splitter": self._splitter})
        except OSError:
            return None

    def _tell(self, stage: Stage, done: int, total: int | None) -> None:
        self.emit(IndexProgress(release=self.tree.name, stage=stage, done=done, total=total))


def _staged(
    batch: _Batch, missing: Sequence[FileVersion], store: KnowledgeStore, split: Split, jobs: int, timeout_s: float
) -> StoreCounts:
    """Split and stage at once; the biggest files come first, so that none is left for the end."""
    paths = [version.path for version in sorted(missing, key=lambda version: (-version.size, version.path))]
    with closing(split_files(paths, batch.tree.root, split, jobs, timeout_s)) as outcomes:
        return store.stage(batch.splits(outcomes, len(paths)), batch.advance)


def _published(tree: Tree, keys: dict[str, str], splitter: str, store: KnowledgeStore, emit: Emit) -> Release:
    """The release as the store holds it now; nothing is written where it held just this."""
    held = _held(tree.name, store)
    if (
        held
        and (held.kind, held.version, held.origin, held.splitter) == (tree.kind, tree.version, tree.origin, splitter)
        and store.manifest(tree.name) == keys
    ):
        return held
    emit(IndexProgress(release=tree.name, stage="publish", done=0, total=1))
    now = datetime.now(UTC).isoformat(timespec="seconds")
    release = Release(
        name=tree.name,
        kind=tree.kind,
        version=tree.version,
        origin=tree.origin,
        indexed_at=now,
        files=len(keys),
        pieces=0,
        splitter=splitter,
    )
    store.publish(release, keys)
    store.collect()
    emit(IndexProgress(release=tree.name, stage="publish", done=1, total=1))
    return _held(tree.name, store) or release


def _held(name: str, store: KnowledgeStore) -> Release | None:
    return next((release for release in store.releases() if release.name == name), None)
