"""Makes a tree a published release: read, look up what is held, split and stage the rest, publish, collect garbage."""

import time
from collections.abc import Iterator, Sequence
from contextlib import closing
from datetime import UTC, datetime
from typing import Literal

from cudal2_agent.contract.base import Record
from cudal2_agent.contract.errors import SourceError
from cudal2_agent.contract.events import Emit, IndexProgress
from cudal2_agent.contract.records.knowledge import KnowledgeStore, Release, SplitFile, StoreCounts, file_key
from cudal2_agent.indexer.listing import Skips
from cudal2_agent.indexer.split.plain import split_plain
from cudal2_agent.indexer.tree import Tree
from cudal2_agent.indexer.walk import FileVersion, load, read_files
from cudal2_agent.indexer.workers import Split, SplitResult, split_files

SPLIT_TIMEOUT_S = 120.0  # the longest header of CUTLASS takes 3 s of CPU time, more on a busy machine
IndexStage = Literal["split", "embed"]


class IndexReport(Record):
    """The result of indexing a tree. Of `files`, `split` were new and `reused` already held; `embedded`: new vectors."""

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
) -> IndexReport:
    """Make a tree a release of the store. The store shows the old release until the new one is complete.

    `split` runs in other processes and must be importable there. `splitter`: its name and version.
    Raises: SourceError if there is nothing to index, KnowledgeError.
    """
    started = time.monotonic()
    versions, skipped = read_files(tree, emit)
    keys = {version.path: file_key(version.path, version.sha256, splitter) for version in versions}
    held = store.held(keys.values())
    missing = [version for version in versions if keys[version.path] not in held]
    batch = _Batch(tree, keys, splitter, emit)
    counts = _staged(batch, missing, store, split, jobs, split_timeout_s) if missing else StoreCounts()
    if not keys:
        raise SourceError(f"{tree.origin}: none of its files can be split; the notices give the reasons")
    release = _published(tree, keys, splitter, store, emit)
    return IndexReport(
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
    """The files being split: turns results into file versions, updates the keys and counts."""

    def __init__(self, tree: Tree, keys: dict[str, str], splitter: str, emit: Emit) -> None:
        self.tree = tree
        self.keys = keys
        self.done = 0
        self.refused = 0
        self.embedded = 0
        self._splitter = splitter
        self.emit = emit
        self._skips = Skips()

    def splits(self, results: Iterator[SplitResult], total: int) -> Iterator[SplitFile]:
        self._report_progress("split", 0, total)
        for result in results:
            self.done += 1
            split = self._file(result)
            self._report_progress("split", self.done, total)
            if split is None:
                self.refused += 1
                del self.keys[result.path]
            else:
                self.keys[result.path] = split.key  # differs from the first key if the file has changed since
                yield split
        self._skips.report(self.tree.name, self.emit)

    def advance(self, counts: StoreCounts) -> None:
        self.embedded += counts.embedded
        self._report_progress("embed", self.embedded, None)

    def _file(self, result: SplitResult) -> SplitFile | None:
        if result.split is not None:
            return result.split.model_copy(update={"splitter": self._splitter})
        if result.unreadable:
            self._skips.add(f"skipped, {result.reason}", result.path)
            return None
        self._skips.add(f"split by lines only, {result.reason}; to try again, remove the release and add it", result.path)
        try:
            # The key is that of a successful split: a file that hangs must not cost its time limit in every run.
            return split_plain(result.path, load(self.tree.root, result.path)).model_copy(update={"splitter": self._splitter})
        except OSError:
            return None

    def _report_progress(self, stage: IndexStage, done: int, total: int | None) -> None:
        self.emit(IndexProgress(release=self.tree.name, stage=stage, done=done, total=total))


def _staged(
    batch: _Batch, missing: Sequence[FileVersion], store: KnowledgeStore, split: Split, jobs: int, timeout_s: float
) -> StoreCounts:
    """Split and stage concurrently, the largest files first, so that none of them is left for the end."""
    paths = [version.path for version in sorted(missing, key=lambda version: (-version.size, version.path))]
    with closing(split_files(paths, batch.tree.root, split, jobs, timeout_s)) as results:
        return store.stage(batch.splits(results, len(paths)), batch.advance)


def _published(tree: Tree, keys: dict[str, str], splitter: str, store: KnowledgeStore, emit: Emit) -> Release:
    """Publish the release unless the store already holds exactly this one. Returns the release that the store holds."""
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
