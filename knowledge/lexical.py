"""The lexical index of one generation: BM25 by field over every published piece, and the columns that filters need."""

import json
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path

import bm25s
import numpy as np
from numpy.typing import NDArray

from contract.errors import KnowledgeError
from contract.knowledge import Piece
from knowledge.analysis import FIELDS, Terms

Scores = NDArray[np.float32]
Mask = NDArray[np.bool_]
_TABLE = "table.json"
_COLUMNS = "columns.npz"


@dataclass(frozen=True)
class Entry:
    """One published piece as the index takes it; `vector_id` is empty where it has no vector."""

    piece_id: int
    path: str
    piece: Piece
    terms: Terms
    releases: tuple[str, ...]
    vector_id: str


class _Codes:
    """Small numbers for strings that repeat, in the order of their first use."""

    def __init__(self) -> None:
        self.known: dict[str, int] = {}

    def __call__(self, text: str) -> int:
        return self.known.setdefault(text, len(self.known))


def build(folder: Path, entries: Iterable[Entry]) -> None:
    """Write the index of these pieces into an empty folder; positions in it are the order of the entries."""
    texts: dict[str, list[list[str]]] = {field: [] for field in FIELDS}
    codes = {name: _Codes() for name in ("path", "kind", "archs", "releases", "family")}
    columns: dict[str, list[int]] = {name: [] for name in (*codes, "piece_id")}
    vectors: list[str] = []
    for entry in entries:
        for field in FIELDS:
            texts[field].append(entry.terms[field].split())
        columns["piece_id"].append(entry.piece_id)
        columns["path"].append(codes["path"](entry.path))
        columns["kind"].append(codes["kind"](entry.piece.kind))
        columns["archs"].append(codes["archs"](" ".join(entry.piece.archs)))
        columns["releases"].append(codes["releases"](" ".join(entry.releases)))
        columns["family"].append(codes["family"](entry.piece.family))
        vectors.append(entry.vector_id)
    for field in FIELDS:
        index = bm25s.BM25()
        # An index needs a word; the sentinel is one that no query has.
        index.index([words or ["\0"] for words in texts[field]] or [["\0"]], show_progress=False)
        index.save(str(folder / field))
    np.savez(
        folder / _COLUMNS, vector=np.array(vectors or [""]), **{name: np.array(c, np.int32) for name, c in columns.items()}
    )
    (folder / _TABLE).write_text(json.dumps({name: list(code.known) for name, code in codes.items()}), encoding="utf-8")


class Lexical:
    """A generation's index, opened for reading; arrays are aligned: position i is the i-th piece of the generation."""

    def __init__(self, folder: Path) -> None:
        """Raises: KnowledgeError where the folder is not a whole index."""
        try:
            self._fields = {field: bm25s.BM25.load(str(folder / field), mmap=True) for field in FIELDS}
            with np.load(folder / _COLUMNS) as columns:
                self._columns: Mapping[str, NDArray[np.int32]] = {n: columns[n] for n in columns.files if n != "vector"}
                self.vector_ids: Sequence[str] = columns["vector"]
            self._tables: dict[str, list[str]] = json.loads((folder / _TABLE).read_text(encoding="utf-8"))
        except (OSError, ValueError, KeyError) as exc:
            raise KnowledgeError(f"the lexical index in {folder} is damaged; run: cudal2-agent index verify") from exc

    def __len__(self) -> int:
        return len(self.piece_ids)

    @property
    def piece_ids(self) -> NDArray[np.int32]:
        return self._columns["piece_id"]

    @property
    def paths(self) -> list[str]:
        return self._tables["path"]

    @property
    def path_of(self) -> NDArray[np.int32]:
        """Index into `paths` of every position."""
        return self._columns["path"]

    @property
    def family_of(self) -> NDArray[np.int32]:
        return self._columns["family"]

    @cached_property
    def position_of_vector(self) -> dict[str, list[int]]:
        positions: dict[str, list[int]] = {}
        for position, vector_id in enumerate(self.vector_ids):
            if vector_id:
                positions.setdefault(str(vector_id), []).append(position)
        return positions

    def scores(self, field: str, words: Sequence[str]) -> Scores:
        """BM25 of every piece's field for these words; a word that stands twice counts twice."""
        if not words or not len(self):
            return np.zeros(len(self), np.float32)
        return np.asarray(self._fields[field].get_scores(list(words)), np.float32)

    def where(self, column: str, accept: Iterable[bool]) -> Mask:
        """Positions whose value in a column is accepted; `accept` is parallel to `values(column)`."""
        return np.fromiter(accept, np.bool_)[self._columns[column]]

    def values(self, column: str) -> list[str]:
        return self._tables[column]
