"""What the knowledge base speaks: releases of files, the pieces they are split into, queries and hits.

A release is a set of file versions; a file version is held once, however many releases share it. The indexer makes
`SplitFile`s, the store keeps them, search answers with `Hit`s of `Chunk`s.
"""

from collections.abc import Callable, Collection, Iterable, Iterator
from math import ceil
from typing import Literal, Protocol

from pydantic import Field

from contract.base import Record, digest
from contract.task import Arch

NOTES = "notes"  # the release that the documents shipped with the product are held under
PieceKind = Literal["class", "function", "alias", "macro", "variable", "enum", "text", "section"]
ReleaseKind = Literal["code", "documents"]


class Piece(Record):
    """A span of a file that is found as one: a definition, a part of a long one, a section; lines count from 1, inclusive.

    `symbol`: qualified name (`cutlass::PipelineTmaAsync::producer_acquire`), or the headings of a section from the title down.
    `definition`: lines of the innermost whole definition around the piece; equal to the piece's own lines where it is whole.
    `archs`: tags such as `sm_90` that path and text name; none where it holds for all.
    `card`: a few plain words about it, made from path, identifiers, comments and neighbours.
    `family`: equal for siblings of one shape in a row (the generated instruction wrappers); empty for a piece of its own.
    """

    start_line: int = Field(ge=1)
    end_line: int = Field(ge=1)
    symbol: str
    kind: PieceKind
    definition: tuple[int, int]
    archs: tuple[str, ...] = ()
    card: str = ""
    family: str = ""


class SplitFile(Record):
    """One version of a file and its pieces, in the order of their lines. Every line with text lies in a piece.

    `terms`: search words of each piece by field where the splitting process has analysed them already; else empty.
    """

    path: str
    sha256: str
    splitter: str
    text: str
    pieces: tuple[Piece, ...]
    terms: tuple[dict[str, str], ...] = ()

    @property
    def key(self) -> str:
        return file_key(self.path, self.sha256, self.splitter)


def file_key(path: str, sha256: str, splitter: str) -> str:
    """What a file version is held under; `splitter`: name and version of what splits it."""
    return digest([path, sha256, splitter], length=32)


class Release(Record):
    """A named set of files. `origin`: where it came from, in words that `index update` reads again; times are ISO 8601 UTC.

    `splitter`: what split its files, so that an origin that never changes need not be read again; empty where not recorded.
    """

    name: str = Field(pattern=r"^[A-Za-z0-9][A-Za-z0-9._+-]{0,99}$")
    kind: ReleaseKind
    version: str
    origin: str
    indexed_at: str
    files: int
    pieces: int
    splitter: str = ""


class Chunk(Record):
    """A piece of text as search answers with it and as a prompt shows it."""

    release: str
    path: str
    start_line: int
    end_line: int
    symbol: str
    kind: str
    archs: tuple[str, ...] = ()
    text: str

    @property
    def id(self) -> str:
        return digest([self.release, self.path, self.start_line, self.symbol, self.text])

    @property
    def tokens(self) -> int:
        """What the text takes of a prompt, at three and a half characters a token, as code runs."""
        return ceil(len(self.text) / 3.5)


class Query(Record):
    """`words`: plain words, identifiers, a message. Filters that are empty let everything through.

    `arch`: prefer what holds for this target; `only_arch`: leave out what is for others. `path`: a prefix or a glob.
    `tokens`: the most that the texts of all hits may take together; 0 for no limit.
    """

    words: str
    arch: Arch | None = None
    only_arch: bool = False
    releases: tuple[str, ...] = ()
    kinds: tuple[str, ...] = ()
    path: str = ""
    count: int = Field(default=6, ge=0)
    tokens: int = Field(default=0, ge=0)


class Hit(Record):
    """`chunk` is the piece grown to its enclosing definition; `matched` the lines that were found in it.

    `twins`: paths whose like pieces were folded into this one (the same code for another target).
    """

    chunk: Chunk
    score: float
    matched: tuple[int, int] | None = None
    twins: tuple[str, ...] = ()


class Retriever(Protocol):
    def search(self, query: Query) -> list[Hit]:
        """Best chunks first, at most `query.count`."""
        ...


class StoreCounts(Record):
    """What a `stage` call did: pieces that were new, vectors that had to be computed, and those that were already held."""

    pieces: int = 0
    embedded: int = 0
    reused: int = 0


class KnowledgeStore(Protocol):
    """Holds file versions and releases. Staged files are invisible until a release that lists them is published.

    Every method raises KnowledgeError. One process writes at a time (`lock`); readers see the last published state.
    """

    def releases(self) -> list[Release]: ...
    def manifest(self, release: str) -> dict[str, str]:
        """File key by path; empty for a release that is not held."""
        ...

    def held(self, keys: Collection[str]) -> set[str]:
        """Those of the keys whose file version is stored whole, staged ones included."""
        ...

    def stage(self, files: Iterable[SplitFile], advance: Callable[[StoreCounts], None]) -> StoreCounts:
        """Store and embed file versions; each batch is durable by itself, so a killed run loses one batch at most."""
        ...

    def publish(self, release: Release, keys: dict[str, str]) -> None:
        """Make a release of staged file versions (key by path), in one step; an older one of the name is replaced."""
        ...

    def remove(self, release: str) -> None: ...
    def pieces(self, release: str) -> Iterator[tuple[str, Piece, str]]:
        """(path, piece, digest of its text) of a release, in the order of path and line."""
        ...

    def verify(self) -> list[str]:
        """What does not fit together between manifest, files, lexical index and vectors; empty where all is well."""
        ...

    def collect(self) -> int:
        """Drop file versions and vectors that no release lists; how many file versions went."""
        ...


def arch_number(arch: str) -> int:
    """90 for `sm_90`, `sm_90a` and `Arch.SM_90A`."""
    return int("".join(c for c in arch if c.isdigit()))


def fits(tags: Collection[str], arch: Arch | None) -> bool:
    """True where text with these tags holds for the target: none, its own number, or sm_80 for the rest of Ampere and Ada."""
    if arch is None or not tags:
        return True
    wanted = arch_number(arch)
    numbers = {arch_number(tag) for tag in tags}
    return wanted in numbers or (wanted in (86, 89) and 80 in numbers)
