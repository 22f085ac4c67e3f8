"""Records and protocols of the knowledge base: releases, files split into pieces, queries and hits.

A release is a set of file versions. A file version is stored once, however many releases share it. The indexer makes
`SplitFile`s, the store keeps them, and search returns `Hit`s of `Chunk`s.
"""

from collections.abc import Callable, Collection, Iterable, Iterator
from math import ceil
from typing import Literal, Protocol

from pydantic import Field

from cudal2_agent.contract.base import Record, digest
from cudal2_agent.contract.records.task import Arch

NOTES = "notes"  # the release of the documents that ship with the product
PieceKind = Literal["class", "function", "alias", "macro", "variable", "enum", "text", "section"]
ReleaseKind = Literal["code", "documents"]


class Piece(Record):
    """A span of a file that search finds as one unit: a definition, a part of a long one, or a section.

    Lines count from 1 and are inclusive.
    `symbol`: qualified name (`cutlass::PipelineTmaAsync::producer_acquire`), or the headings of a section from the title down.
    `definition`: lines of the innermost definition that contains the piece; the lines of the piece where it is a whole one.
    `archs`: architecture tags such as `sm_90` in path and text; empty where the piece is valid for all.
    `card`: a few plain words about the piece, made from path, identifiers, comments and neighbours.
    `family`: shared by consecutive siblings of one form, such as generated instruction wrappers; empty for any other piece.
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
    """One version of a file and its pieces in line order. Every line with text belongs to a piece.

    `terms`: search words of each piece by field, where the splitting process has already analysed them; else empty.
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
    """The key of a file version in the store. `splitter`: name and version of the splitter."""
    return digest([path, sha256, splitter], length=32)


class Release(Record):
    """A named set of files. Times are ISO 8601 in UTC.

    `origin`: where the files came from, in a form that `index update` can read again.
    `splitter`: name and version of the splitter, so that an unchangeable origin is not read again; empty if not recorded.
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
    """A piece of text as search returns it and as a prompt shows it."""

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
        """Estimated tokens of the text in a prompt, at 3.5 characters per token, which is typical for code."""
        return ceil(len(self.text) / 3.5)


class Query(Record):
    """A question to the knowledge base. An empty filter excludes nothing.

    `words`: plain words, identifiers or an error message. `path`: a prefix or a glob.
    `arch`: prefer pieces that are valid for this target; `only_arch`: exclude pieces for other targets.
    `tokens`: maximum for the texts of all hits together; 0 for no limit.
    `sure`: no hits where the words neither name anything in few files nor say what the glossary knows.
    """

    words: str
    arch: Arch | None = None
    only_arch: bool = False
    sure: bool = False
    releases: tuple[str, ...] = ()
    kinds: tuple[str, ...] = ()
    path: str = ""
    count: int = Field(default=6, ge=0)
    tokens: int = Field(default=0, ge=0)


class Hit(Record):
    """One result of a search.

    `chunk`: the piece, extended to its enclosing definition. `matched`: the lines in it that matched.
    `twins`: paths of similar pieces that were folded into this hit, such as the same code for another target.
    """

    chunk: Chunk
    score: float
    matched: tuple[int, int] | None = None
    twins: tuple[str, ...] = ()


class Retriever(Protocol):
    def search(self, query: Query) -> list[Hit]:
        """At most `query.count` hits, best first."""
        ...


class StoreCounts(Record):
    """Counts of one `stage` call: new pieces, computed vectors, and vectors that the store already had."""

    pieces: int = 0
    embedded: int = 0
    reused: int = 0


class KnowledgeStore(Protocol):
    """Stores file versions and releases. Staged files are invisible until a release that lists them is published.

    Every method raises KnowledgeError. One process writes at a time (`lock`). Readers see the last published state.
    """

    def releases(self) -> list[Release]: ...
    def manifest(self, release: str) -> dict[str, str]:
        """File key by path; empty for an unknown release."""
        ...

    def held(self, keys: Collection[str]) -> set[str]:
        """The keys whose file version is stored completely, staged ones included."""
        ...

    def stage(self, files: Iterable[SplitFile], advance: Callable[[StoreCounts], None]) -> StoreCounts:
        """Store and embed file versions. Each batch is durable, so a killed run loses at most one batch."""
        ...

    def publish(self, release: Release, keys: dict[str, str]) -> None:
        """Publish staged file versions (key by path) as a release, atomically. A release of the same name is replaced."""
        ...

    def remove(self, release: str) -> None: ...
    def pieces(self, release: str) -> Iterator[tuple[str, Piece, str]]:
        """(path, piece, digest of its text) for each piece of a release, ordered by path and line."""
        ...

    def verify(self) -> list[str]:
        """Inconsistencies between manifest, files, lexical index and vectors; empty where there are none."""
        ...

    def collect(self) -> int:
        """Delete file versions and vectors that no release lists. Returns the number of deleted file versions."""
        ...


def arch_number(arch: str) -> int:
    """The number of an architecture: 90 for `sm_90`, `sm_90a` and `Arch.SM_90A`."""
    return int("".join(c for c in arch if c.isdigit()))


def fits(tags: Collection[str], arch: Arch | None) -> bool:
    """Whether text with these tags is valid for the target.

    It is where there are no tags, where one names the target, and where sm_80 is named for another Ampere or Ada target.
    """
    if arch is None or not tags:
        return True
    wanted = arch_number(arch)
    numbers = {arch_number(tag) for tag in tags}
    return wanted in numbers or (wanted in (86, 89) and 80 in numbers)
