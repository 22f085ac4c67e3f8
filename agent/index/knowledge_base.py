"""Opens the knowledge base that the settings name, and says what is in it."""

from collections.abc import Iterator, Sequence
from contextlib import contextmanager

from contract.base import Record
from contract.errors import UsageError
from contract.knowledge import NOTES, Release
from contract.settings import Settings
from knowledge.embedding.choice import make_embedder
from knowledge.embedding.embedder import Embedder
from knowledge.glossary import load_glossary
from knowledge.lexical import Lexical
from knowledge.store import Store, open_store


class Contents(Record):
    """The knowledge base in short. `vectors`: where they are kept; `bytes`: the folder's size, a server's not included.

    `placed`: how many of the glossary's `concepts` have a place in the index.
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
    """The embedder that the settings name; its weights are read when it is first used."""
    return make_embedder(settings.embedding_model, settings.embedding_device, settings.embedding_precision)


@contextmanager
def open_library(
    settings: Settings, *, read_only: bool = True, rebuild: bool = False, embedder: Embedder | None = None
) -> Iterator[Store]:
    """The store; one process at a time has it open for writing. `rebuild`: whatever model its vectors come from.

    Raises: KnowledgeError, also where there is none to read; ModelMismatch; KnowledgeBusy where another process writes.
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


def contents(settings: Settings) -> Contents:
    """Raises: KnowledgeError."""
    embedder, folder, glossary = embedder_for(settings), settings.knowledge_dir, load_glossary()
    with open_library(settings, embedder=embedder) as store:
        releases = tuple(store.releases())
        placed = Lexical(store.lexical_dir).anchors(glossary).placed if releases else 0
    return Contents(
        folder=str(folder),
        bytes=sum(path.stat().st_size for path in folder.rglob("*") if path.is_file()),
        vectors=f"Chroma server {settings.chroma_host}:{settings.chroma_port}" if settings.chroma_host else "in the folder",
        model=embedder.identity,
        releases=releases,
        pieces=sum(release.pieces for release in releases),
        concepts=len(glossary.concepts),
        placed=placed,
    )


def find_release(store: Store, name: str) -> Release:
    """A release by its name, or by its version where only one has it. Raises: UsageError."""
    held = store.releases()
    found = [release for release in held if release.name == name] or [release for release in held if release.version == name]
    if len(found) == 1:
        return found[0]
    raise UsageError(f"release {name!r} is not indexed; there are: {', '.join(release.name for release in held) or 'none'}")


def is_default(release: Release, settings: Settings) -> bool:
    """Whether this is the CUTLASS release that the settings want to have indexed."""
    return release.kind == "code" and settings.cutlass in (release.version, release.name, release.origin)


def lacking(held: Sequence[Release], settings: Settings) -> list[str]:
    """What the default index has and these releases have not: the notes, the CUTLASS release."""
    notes = [] if any(release.name == NOTES for release in held) else [NOTES]
    code = [] if any(is_default(release, settings) for release in held) else [f"CUTLASS {settings.cutlass}"]
    return notes + code
