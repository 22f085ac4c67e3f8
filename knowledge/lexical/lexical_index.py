"""One generation of the lexical index: BM25 by field over all published pieces, and the columns that filters need."""

import json
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from zipfile import BadZipFile

import numpy as np
from numpy.typing import NDArray

from cudal2_agent.contract.errors import KnowledgeError
from cudal2_agent.contract.records.knowledge import Piece
from cudal2_agent.knowledge.glossary.glossary import Glossary, load_glossary
from cudal2_agent.knowledge.lexical.analysis import FIELDS, SIGNATURE, Terms
from cudal2_agent.knowledge.lexical.anchors import Anchors, find_anchors
from cudal2_agent.knowledge.lexical.signatures import unpacked
from cudal2_agent.knowledge.lexical.symbols import SymbolPositions
from cudal2_agent.knowledge.lexical.word_index import Scores, WordIndex

Mask = NDArray[np.bool_]
Column = NDArray[np.int32]

_TABLE = "table.json"
_COLUMNS = "columns.npz"
_CODED = ("path", "symbol", "kind", "archs", "releases")
_PLAIN = ("piece_id", "start", "end", "outer_start", "outer_end")


@dataclass(frozen=True)
class IndexedPiece:
    """One published piece with its search words. `vector_id` is empty if it has no vector."""

    piece_id: int
    path: str
    piece: Piece
    terms: Terms
    releases: tuple[str, ...]
    vector_id: str


class _Codes:
    """Codes for repeated strings, in the order of first use."""

    def __init__(self) -> None:
        self.known: dict[str, int] = {}

    def __call__(self, text: str) -> int:
        return self.known.setdefault(text, len(self.known))


def build(folder: Path, entries: Iterable[IndexedPiece], glossary: Glossary | None = None) -> None:
    """Write the index of these pieces into an empty folder. A position in the index is the piece's number in their order.

    The pieces of a file are consecutive, in the order of their lines.
    """
    texts: dict[str, list[str]] = {field: [] for field in (*FIELDS, SIGNATURE)}
    codes = {name: _Codes() for name in _CODED}
    columns: dict[str, list[int]] = {name: [] for name in (*_CODED, *_PLAIN)}
    vectors: list[str] = []
    for entry in entries:
        for field, found in texts.items():
            found.append(entry.terms[field])
        for name, value in _values(entry).items():
            columns[name].append(codes[name](value) if isinstance(value, str) else value)
        vectors.append(entry.vector_id)
    tables = {name: list(code.known) for name, code in codes.items()}
    indexes = {field: WordIndex.build(text.split() for text in texts[field]) for field in FIELDS}
    for field, index in indexes.items():
        index.save(folder / field)
    arrays = {name: np.array(values, np.int32) for name, values in columns.items()}
    np.savez(folder / _COLUMNS, vector=np.array(vectors, str), signature=unpacked(texts[SIGNATURE]), **arrays)  # type: ignore[arg-type]
    (folder / _TABLE).write_text(json.dumps(tables), encoding="utf-8")
    paths, symbols = ([tables[name][code] for code in columns[name]] for name in ("path", "symbol"))
    places = find_anchors(glossary or load_glossary(), symbols, paths, indexes["body"].holding)
    places.save(folder)


def _values(entry: IndexedPiece) -> dict[str, str | int]:
    piece = entry.piece
    return {
        "path": entry.path,
        "symbol": piece.symbol,
        "kind": piece.kind,
        "archs": " ".join(piece.archs),
        "releases": " ".join(entry.releases),
        "piece_id": entry.piece_id,
        "start": piece.start_line,
        "end": piece.end_line,
        "outer_start": piece.definition[0],
        "outer_end": piece.definition[1],
    }


class LexicalIndex:
    """The index of a generation, open for reading. In all arrays, position i is the i-th piece of the generation."""

    def __init__(self, folder: Path) -> None:
        """Raises: KnowledgeError if the folder is not a complete index."""
        try:
            self._fields = {field: WordIndex.load(folder / field) for field in FIELDS}
            with np.load(folder / _COLUMNS) as columns:
                self._columns: Mapping[str, NDArray[np.int32]] = {name: columns[name] for name in columns.files}
            self._tables: dict[str, list[str]] = json.loads((folder / _TABLE).read_text(encoding="utf-8"))
            self._anchors = Anchors.load(folder)
        except (OSError, ValueError, KeyError, EOFError, BadZipFile) as exc:
            raise KnowledgeError(f"the lexical index in {folder} is damaged; run: cudal2-agent index update") from exc

    def __len__(self) -> int:
        return len(self._columns["piece_id"])

    def column(self, name: str) -> Column:
        """One number per position; for a coded column, the index into `values`."""
        return self._columns[name]

    def values(self, name: str) -> list[str]:
        return self._tables[name]

    def value(self, name: str, position: int) -> str:
        return self._tables[name][int(self._columns[name][position])]

    @property
    def signatures(self) -> NDArray[np.uint32]:
        """Shape: (positions, hashes)."""
        found: NDArray[np.uint32] = self._columns["signature"].view(np.uint32)
        return found

    def anchors(self, glossary: Glossary) -> Anchors:
        """The positions of the glossary's symbols. They are located again if the index was built with another glossary."""
        if self._anchors.digest == glossary.digest:
            return self._anchors
        symbols, paths = ([self.values(name)[code] for code in self.column(name)] for name in ("symbol", "path"))
        return find_anchors(glossary, symbols, paths, self._fields["body"].holding)

    @cached_property
    def symbols(self) -> SymbolPositions:
        symbols, paths = ([self.values(name)[code] for code in self.column(name)] for name in ("symbol", "path"))
        return SymbolPositions(symbols, paths, self._fields["body"].holding)

    @cached_property
    def positions_of_vector(self) -> dict[str, list[int]]:
        positions: dict[str, list[int]] = {}
        for position, vector_id in enumerate(self._columns["vector"].tolist()):
            if vector_id:
                positions.setdefault(vector_id, []).append(position)
        return positions

    def scores(self, field: str, words: Sequence[str]) -> Scores:
        """BM25 scores of a field of all pieces for these words. A repeated word counts repeatedly."""
        return self._fields[field].scores(words)

    def where(self, column: str, accept: Iterable[bool]) -> Mask:
        """Positions whose value in a coded column is accepted. `accept` is parallel to `values(column)`."""
        return np.fromiter(accept, np.bool_, len(self.values(column)))[self._columns[column]]
