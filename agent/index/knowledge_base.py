"""Opens the knowledge base of the settings, and sums up its contents."""

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path

import cudal2_agent.knowledge
from cudal2_agent.contract.base import Record
from cudal2_agent.contract.errors import UsageError
from cudal2_agent.contract.records.knowledge import NOTES, Release
from cudal2_agent.contract.settings.settings import Settings
from cudal2_agent.knowledge.embedding.choice import make_embedder
from cudal2_agent.knowledge.embedding.embedder import Embedder
from cudal2_agent.knowledge.glossary import load_glossary
from cudal2_agent.knowledge.lexical.lexical_index import LexicalIndex
from cudal2_agent.knowledge.store import KnowledgeBase, open_store

NOTES_FOLDER = Path(cudal2_agent.knowledge.__file__).parent / "notes"


class KnowledgeSummary(Record):
    """The knowledge base in short. `vectors`: where they are stored. `bytes`: the folder's size, without a server's.

    `placed`: the number of the glossary's `concepts` that have a place in the index.
    """

    folder: str
    bytes: int
    vectors: str
    model: str
    releases: tuple[Release, ...]
    pieces: int
    concepts: int
    placed: int


def embedder_for(settings: Settings) -> Embedder:
    """The embedder of the settings. Its weights are read at its first use."""
    return make_embedder(settings.embedding_model, settings.embedding_device, settings.embedding_precision)


@contextmanager
def open_library(
    settings: Settings, *, read_only: bool = True, rebuild: bool = False, embedder: Embedder | None = None
) -> Iterator[KnowledgeBase]:
    """The store. One process at a time may write. `rebuild`: open it even where its vectors come from another model.

    Raises: KnowledgeError, also where there is no store to read; ModelMismatch; KnowledgeBusy where another process writes.
    """
    with open_store(
        settings.knowledge_dir,
        embedder or embedder_for(settings),
        chroma_host=settings.chroma_host,
        chroma_port=settings.chroma_port,
        read_only=read_only,
        rebuild=rebuild,
    ) as store:
        yield store


def contents(settings: Settings) -> KnowledgeSummary:
    """Raises: KnowledgeError."""
    embedder, folder, glossary = embedder_for(settings), settings.knowledge_dir, load_glossary()
    with open_library(settings, embedder=embedder) as store:
        releases = tuple(store.releases())
        placed = LexicalIndex(store.lexical_dir).anchors(glossary).placed if releases else 0
    return KnowledgeSummary(
        folder=str(folder),
        bytes=sum(path.stat().st_size for path in folder.rglob("*") if path.is_file()),
        vectors=f"Chroma server {settings.chroma_host}:{settings.chroma_port}" if settings.chroma_host else "in the folder",
        model=embedder.identity,
        releases=releases,
        pieces=sum(release.pieces for release in releases),
        concepts=len(glossary.concepts),
        placed=placed,
    )


def find_release(store: KnowledgeBase, name: str) -> Release:
    """A release by its name, or by its version where that is unique. Raises: UsageError."""
    held = store.releases()
    found = [release for release in held if release.name == name] or [release for release in held if release.version == name]
    if len(found) == 1:
        return found[0]
    raise UsageError(
        f"release {name!r} is not indexed; indexed releases: {', '.join(release.name for release in held) or 'none'}"
    )


def is_default(release: Release, settings: Settings) -> bool:
    """Whether this is the CUTLASS release of the settings."""
    return release.kind == "code" and settings.cutlass in (release.version, release.name, release.origin)


def lacking(held: Sequence[Release], settings: Settings) -> list[str]:
    """What these releases lack of the default index: the notes, or some of those that ship now, and the CUTLASS release."""
    shipped = sum(1 for _ in NOTES_FOLDER.glob("*.md"))
    notes = [] if any(release.name == NOTES and release.files >= shipped for release in held) else [NOTES]
    code = [] if any(is_default(release, settings) for release in held) else [f"CUTLASS {settings.cutlass}"]
    return notes + code
