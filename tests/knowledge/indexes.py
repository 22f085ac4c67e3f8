"""Small lexical indexes of invented pieces, and a model with given similarities of texts."""

from collections.abc import Mapping, Sequence
from pathlib import Path

import numpy as np

from cudal2_agent.contract.records.knowledge import Piece
from cudal2_agent.knowledge.embedding.embedder import Vectors, unit_rows
from cudal2_agent.knowledge.glossary import Concept, Glossary
from cudal2_agent.knowledge.lexical.analysis import analyse
from cudal2_agent.knowledge.lexical.lexical_index import IndexedPiece, LexicalIndex, build

NO_GLOSSARY = Glossary(concepts=())


def entry(
    number: int = 0,
    path: str = "inc/ring.hpp",
    symbol: str = "ns::Ring",
    lines: tuple[int, int] = (1, 3),
    *,
    text: str = "",
    definition: tuple[int, int] | None = None,
    archs: tuple[str, ...] = (),
    kind: str = "function",
    releases: tuple[str, ...] = ("a-1",),
    vector: str = "",
) -> IndexedPiece:
    piece = Piece.model_validate(
        {
            "start_line": lines[0],
            "end_line": lines[1],
            "symbol": symbol,
            "kind": kind,
            "definition": definition or lines,
            "archs": archs,
        }
    )
    return IndexedPiece(number, path, piece, analyse(path, piece, text), releases, vector)


def opened(folder: Path, entries: Sequence[IndexedPiece], glossary: Glossary = NO_GLOSSARY) -> LexicalIndex:
    folder.mkdir(parents=True, exist_ok=True)
    build(folder, entries, glossary)
    return LexicalIndex(folder)


def concept(name: str, *, terms: Sequence[str] = (), asks: Sequence[str] = (), code: Sequence[str] = ()) -> Concept:
    return Concept(name=name, terms=tuple(terms), asks=tuple(asks), code=tuple(code))


def glossary(*concepts: Concept) -> Glossary:
    return Glossary(concepts=concepts)


class Meanings:
    """An embedder with one dimension per meaning. A text that contains a meaning's key has this meaning."""

    identity = "meanings"

    def __init__(self, meanings: Mapping[str, int]) -> None:
        self._meanings = meanings
        self.dimensions = max(meanings.values(), default=0) + 2

    def embed(self, texts: Sequence[str]) -> Vectors:
        rows = np.zeros((len(texts), self.dimensions), np.float32)
        for row, text in enumerate(texts):
            for key, axis in self._meanings.items():
                rows[row, axis] += text.lower().count(key)
            if not rows[row].any():
                rows[row, -1] = 1
        return unit_rows(rows)
