"""What retrieval speaks: chunks, queries, hits."""

from typing import Protocol

from contract.base import Record, digest
from contract.task import Arch


class Chunk(Record):
    """One addressable piece of text: a definition in a source, a section of a note, an exemplar kernel."""

    release: str
    path: str
    start_line: int
    end_line: int
    symbol: str
    kind: str
    archs: tuple[Arch, ...] = ()
    text: str

    @property
    def id(self) -> str:
        return digest([self.release, self.path, self.start_line, self.symbol, self.text])


class Query(Record):
    """`words`: what is asked in plain words and identifiers; `arch`: prefer what holds for this target."""

    words: str
    arch: Arch | None = None
    count: int = 6


class Hit(Record):
    chunk: Chunk
    score: float


class Retriever(Protocol):
    def search(self, query: Query) -> list[Hit]:
        """Best chunks first, at most `query.count`."""
        ...
