"""Takes releases into the knowledge base, and the product's own notes with them."""

from collections.abc import Iterator
from contextlib import AbstractContextManager, contextmanager
from pathlib import Path

import knowledge
from agent.index.knowledge_base import embedder_for, find_release, open_library
from agent.index.splitting import SPLITTER, split_and_analyse
from contract.errors import SourceError, UsageError
from contract.events import Emit, IndexProgress, Notice
from contract.knowledge import NOTES, Release
from contract.settings import Settings
from indexer.pipeline import Report, index_tree
from indexer.sources.opening import open_source
from indexer.sources.package import wanted_package
from indexer.tree import Tree
from knowledge.embedding.embedder import Embedder
from knowledge.store import Store

NOTES_FOLDER = Path(knowledge.__file__).parent / "notes"
KEPT = "stopped; the index is as it was, what was done so far is kept, and the same command goes on from there"


def add(source: str, name: str | None, settings: Settings, emit: Emit) -> list[Report]:
    """Index a release, and the notes where they have changed.

    Raises: SourceError and UsageError before anything is written, KnowledgeError.
    """
    with opened(source, name, settings, emit) as tree:
        if tree.name == NOTES:
            raise UsageError(f"{NOTES!r} is what the product's own notes are called; give another name with --name")
        with writing(settings, emit) as store:
            return [*refresh_notes(store, settings, emit), take_in(tree, store, settings, emit)]


def update(name: str | None, settings: Settings, emit: Emit) -> tuple[list[Report], list[str]]:
    """Read the origin of one release, or of all, again: what was done, and which origins could not be read.

    Raises: UsageError for a release that is not held, KnowledgeError.
    """
    reports, trouble = [], []
    with writing(settings, emit) as store:
        wanted = [find_release(store, name)] if name else store.releases()
        reports += refresh_notes(store, settings, emit)
        for release in wanted:
            if release.name == NOTES:
                continue
            try:
                if _is_fixed(release):
                    emit(Notice(message=f"{release.name}: a version in the package registry does not change; nothing to do"))
                    continue
                with opened(release.origin, release.name, settings, emit) as tree:
                    reports.append(take_in(tree, store, settings, emit))
            except SourceError as exc:
                trouble.append(f"{release.name}: {exc}")
    return reports, trouble


def _is_fixed(release: Release) -> bool:
    """Whether reading the origin again could bring nothing new: a registry's version, split as it would be now."""
    return release.splitter == SPLITTER and wanted_package(release.origin) is not None


def remove(name: str, settings: Settings, emit: Emit) -> tuple[str, int]:
    """Drop a release: its name, and how many file versions no other one shares. Raises: UsageError, KnowledgeError."""
    with writing(settings, emit) as store:
        release = find_release(store, name).name
        store.remove(release)
        return release, store.collect()


def rebuild(settings: Settings, emit: Emit) -> tuple[int, str]:
    """Embed everything anew with the model of the settings: how many texts, and the model. Raises: KnowledgeError."""

    def advance(done: int, total: int) -> None:
        emit(IndexProgress(release="all releases", stage="embed", done=done, total=total))

    embedder = embedder_for(settings)
    with writing(settings, emit, embedder, rebuild=True) as store:
        return store.reembed(advance), embedder.identity


def refresh_notes(store: Store, settings: Settings, emit: Emit) -> list[Report]:
    """Take the notes in; a report where they were not held as they are now."""
    before = store.manifest(NOTES)
    with opened(str(NOTES_FOLDER), NOTES, settings, emit) as tree:
        report = take_in(tree, store, settings, emit)
    return [report] if store.manifest(NOTES) != before else []


def take_in(tree: Tree, store: Store, settings: Settings, emit: Emit) -> Report:
    """Split, stage and publish a release's files."""
    return index_tree(tree, store, split_and_analyse, SPLITTER, emit, settings.index_jobs)


def opened(source: str, name: str | None, settings: Settings, emit: Emit) -> AbstractContextManager[Tree]:
    """A source's files on disk. Raises: SourceError."""
    return open_source(source, name=name, work_dir=settings.home / "cache" / "sources", emit=emit)


@contextmanager
def writing(settings: Settings, emit: Emit, embedder: Embedder | None = None, *, rebuild: bool = False) -> Iterator[Store]:
    """The store, open for writing; an interrupt says what it leaves behind. Raises: KnowledgeError."""
    try:
        with open_library(settings, read_only=False, rebuild=rebuild, embedder=embedder) as store:
            yield store
    except KeyboardInterrupt:
        emit(Notice(message=KEPT))
        raise
