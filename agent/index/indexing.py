"""Adds, updates, removes and rebuilds releases in the knowledge base, with the product's own notes."""

from collections.abc import Iterator
from contextlib import AbstractContextManager, contextmanager
from pathlib import Path

from cudal2_agent.agent.index.knowledge_base import NOTES_FOLDER, embedder_for, find_release, open_library
from cudal2_agent.agent.index.splitting import SPLITTER, split_and_analyse
from cudal2_agent.contract.errors import SourceError, UsageError
from cudal2_agent.contract.events import Emit, IndexProgress, Notice
from cudal2_agent.contract.records.knowledge import NOTES, Release
from cudal2_agent.contract.settings.settings import Settings
from cudal2_agent.indexer.pipeline import IndexReport, index_tree
from cudal2_agent.indexer.sources.opening import open_source
from cudal2_agent.indexer.sources.package import wanted_package
from cudal2_agent.indexer.tree import Tree
from cudal2_agent.knowledge.embedding.embedder import Embedder
from cudal2_agent.knowledge.store import KnowledgeBase

KEPT = "stopped; the index is unchanged, the work so far is kept, and the same command continues it"


def add(source: str, name: str | None, settings: Settings, emit: Emit) -> list[IndexReport]:
    """Index a release, and the notes where they changed.

    Raises: SourceError and UsageError before anything is written, KnowledgeError.
    """
    with opened(source, name, settings, emit) as tree:
        if tree.name == NOTES:
            raise UsageError(f"{NOTES!r} is the name of the product's own notes; choose another with --name")
        with writing(settings, emit) as store:
            return [*refresh_notes(store, settings, emit), index_release(tree, store, settings, emit)]


def update(name: str | None, settings: Settings, emit: Emit) -> tuple[list[IndexReport], list[str]]:
    """Read the origin of one release, or of all, again. Returns the reports, and the origins that could not be read.

    Raises: UsageError for a release that is not held, KnowledgeError.
    """
    reports, failures = [], []
    with writing(settings, emit) as store:
        wanted = [find_release(store, name)] if name else store.releases()
        reports += refresh_notes(store, settings, emit)
        for release in wanted:
            if release.name == NOTES:
                continue
            try:
                if _is_fixed(release):
                    emit(Notice(message=f"{release.name}: a version in a package registry does not change; nothing to do"))
                    continue
                with opened(release.origin, _kept_name(release), settings, emit) as tree:
                    reports.append(index_release(tree, store, settings, emit))
                if tree.name != release.name:
                    store.remove(release.name)
                    store.collect()
                    emit(Notice(message=f"{release.name} is {tree.name} now: {release.origin} holds another version"))
            except SourceError as exc:
                failures.append(f"{release.name}: {exc}")
    return reports, failures


def _kept_name(release: Release) -> str | None:
    """None where the name was made from a version, which it then follows: `cutlass-4.2.0` never holds 4.7.0."""
    title = release.name.removesuffix(f"-{release.version}")
    made = title != release.name and title in ("cutlass", Path(release.origin).name.removesuffix(".git"))
    return None if made else release.name


def _is_fixed(release: Release) -> bool:
    """Whether the origin cannot have changed: a registry's version, split by the present splitter."""
    return release.splitter == SPLITTER and wanted_package(release.origin) is not None


def remove(name: str, settings: Settings, emit: Emit) -> tuple[str, int]:
    """Remove a release. Returns its name and the number of removed file versions. Raises: UsageError, KnowledgeError."""
    with writing(settings, emit) as store:
        release = find_release(store, name).name
        store.remove(release)
        return release, store.collect()


def rebuild(settings: Settings, emit: Emit) -> tuple[int, str]:
    """Embed everything again. Returns the number of texts and the model. Raises: KnowledgeError."""

    def advance(done: int, total: int) -> None:
        emit(IndexProgress(release="all releases", stage="embed", done=done, total=total))

    embedder = embedder_for(settings)
    with writing(settings, emit, embedder, rebuild=True) as store:
        return store.reembed(advance), embedder.identity


def refresh_notes(store: KnowledgeBase, settings: Settings, emit: Emit) -> list[IndexReport]:
    """Index the notes. Returns a report where they changed."""
    before = store.manifest(NOTES)
    with opened(str(NOTES_FOLDER), NOTES, settings, emit) as tree:
        report = index_release(tree, store, settings, emit)
    return [report] if store.manifest(NOTES) != before else []


def index_release(tree: Tree, store: KnowledgeBase, settings: Settings, emit: Emit) -> IndexReport:
    """Split, stage and publish a release's files."""
    return index_tree(tree, store, split_and_analyse, SPLITTER, emit, settings.index_jobs)


def opened(source: str, name: str | None, settings: Settings, emit: Emit) -> AbstractContextManager[Tree]:
    """A source's files on disk. Raises: SourceError."""
    return open_source(source, name=name, work_dir=settings.home / "cache" / "sources", emit=emit)


@contextmanager
def writing(
    settings: Settings, emit: Emit, embedder: Embedder | None = None, *, rebuild: bool = False
) -> Iterator[KnowledgeBase]:
    """The store, open for writing. An interrupt emits a notice about what is kept. Raises: KnowledgeError."""
    try:
        with open_library(settings, read_only=False, rebuild=rebuild, embedder=embedder) as store:
            yield store
    except KeyboardInterrupt:
        emit(Notice(message=KEPT))
        raise
