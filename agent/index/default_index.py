"""The retriever of a run: the default index, built where it is absent, or else the releases that are indexed."""

from collections.abc import Iterator, Sequence
from contextlib import ExitStack, contextmanager
from pathlib import Path

from cudal2_agent.agent.index.indexing import index_release, opened, refresh_notes, writing
from cudal2_agent.agent.index.knowledge_base import embedder_for, is_default, lacking, open_library
from cudal2_agent.contract.errors import KnowledgeBusy, KnowledgeError
from cudal2_agent.contract.events import Emit, Notice
from cudal2_agent.contract.records.knowledge import Hit, Query, Release, Retriever
from cudal2_agent.contract.settings.settings import Settings
from cudal2_agent.knowledge.embedding.embedder import Embedder
from cudal2_agent.knowledge.search import open_search


class EmptyRetriever:
    """The retriever of a run without a knowledge base."""

    def search(self, _: Query) -> list[Hit]:
        return []


class TolerantRetriever:
    """A retriever whose first failure is reported. After it, searches return nothing, and the run goes on."""

    def __init__(self, retriever: Retriever, emit: Emit) -> None:
        self._retriever: Retriever = retriever
        self._emit = emit

    def search(self, query: Query) -> list[Hit]:
        try:
            return self._retriever.search(query)
        except KnowledgeError as exc:
            self._retriever = EmptyRetriever()
            self._emit(Notice(message=f"{exc}; the run goes on without the knowledge base"))
            return []


@contextmanager
def open_retriever(settings: Settings, emit: Emit, *, build: bool = True) -> Iterator[Retriever]:
    """A retriever for a run. A missing index never fails a run; one notice reports it with the remedy.

    `build`: whether a missing index is built, which takes half a minute; a search over schedules does not read it.
    """
    if not settings.use_knowledge or not (build or _path(settings).exists()):
        yield EmptyRetriever()
        return
    embedder = embedder_for(settings)
    trouble = _completed(settings, embedder, emit) if build else ""
    held: list[str] = []
    retriever: Retriever = EmptyRetriever()
    with ExitStack() as stack:
        try:
            store = stack.enter_context(open_library(settings, embedder=embedder))
            held = [release.name for release in store.releases()]
            retriever = TolerantRetriever(open_search(store), emit) if held else EmptyRetriever()
        except KnowledgeError as exc:
            trouble, held = trouble or str(exc), []
        if trouble:
            emit(Notice(message=f"{trouble}; the run goes on {_with(held)} (--no-knowledge leaves this out)"))
        yield retriever


def _completed(settings: Settings, embedder: Embedder, emit: Emit) -> str:
    """Build what the default index lacks, the notes first, in case the rest fails. Returns the failure, or ''."""
    try:
        missing = lacking(_held(settings, embedder), settings)
        if not missing:
            return ""
        emit(Notice(message=f"building the index of {' and '.join(missing)}, once; --minutes starts after it"))
        with writing(settings, emit, embedder) as store:
            refresh_notes(store, settings, emit)
            if any(is_default(release, settings) for release in store.releases()):
                return ""
            with opened(settings.cutlass, None, settings, emit) as tree:
                index_release(tree, store, settings, emit)
    except KnowledgeError as exc:
        return str(exc)
    return ""


def _held(settings: Settings, embedder: Embedder) -> list[Release]:
    if not _path(settings).exists():
        return []
    try:
        with open_library(settings, embedder=embedder) as store:
            return store.releases()
    except KnowledgeBusy:  # it has no tables yet; the writer's lock tells whether another process makes them
        return []


def _path(settings: Settings) -> Path:
    return settings.knowledge_dir / "knowledge.sqlite"


def _with(held: Sequence[str]) -> str:
    return f"with {', '.join(held)}" if held else "without the knowledge base"
