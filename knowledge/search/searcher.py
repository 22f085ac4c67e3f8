"""Hybrid search over the published releases: words, names, vectors and the glossary's concepts, fused by rank.

Four signals are fused by rank: BM25 over names, cards and bodies; the places of names that stand in few files; the nearest
vectors; and the definitions that the glossary names for the concepts of the question. Special variants that the question does
not name rank lower, near-equal pieces are folded into one hit, and a hit is shown with its enclosing definition.
"""

from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Protocol

from cudal2_agent.contract.records.knowledge import Chunk, Hit, Query, Retriever
from cudal2_agent.knowledge.embedding.embedder import Embedder
from cudal2_agent.knowledge.embedding.static import StaticModel
from cudal2_agent.knowledge.glossary.glossary import Glossary, load_glossary
from cudal2_agent.knowledge.lexical.analysis import words_of
from cudal2_agent.knowledge.lexical.lexical_index import LexicalIndex
from cudal2_agent.knowledge.lexical.word_index import Scores
from cudal2_agent.knowledge.search.concepts import Concepts
from cudal2_agent.knowledge.search.fusion import best
from cudal2_agent.knowledge.search.scoring import Scoring, VectorSearch, last_release
from cudal2_agent.knowledge.search.selection import Excerpt, Selection
from cudal2_agent.knowledge.search.weights import SearchWeights
from cudal2_agent.knowledge.store.rows import Row

_CANDIDATES = 400


class Pieces(VectorSearch, Protocol):
    """What the search reads from the knowledge base."""

    @property
    def lexical_dir(self) -> Path: ...
    def rows(self, piece_ids: Sequence[int]) -> list[Row]: ...
    def text(self, file_key: str) -> tuple[str, ...]: ...


class Searcher:
    """Implements `contract.records.knowledge.Retriever` over one published state of the knowledge base."""

    def __init__(self, store: Pieces, index: LexicalIndex, concepts: Concepts, weights: SearchWeights) -> None:
        self._store = store
        self._index = index
        self._scoring = Scoring(store, index, concepts, weights)
        self._selection = Selection(index, weights)

    def search(self, query: Query) -> list[Hit]:
        """Raises: KnowledgeError if the knowledge base can no longer be read."""
        if not query.count or not words_of(query.words) or not len(self._index):
            return []
        scores = self._scoring.scores(query)
        chosen = self._selection.choose([int(position) for position in best(scores, _CANDIDATES)], query.count)
        return list(_within_budget(list(self._hits(chosen, scores, query)), query.tokens))

    def _hits(self, chosen: Sequence[Excerpt], scores: Scores, query: Query) -> Iterator[Hit]:
        ids = [int(self._index.column("piece_id")[excerpt.position]) for excerpt in chosen]
        for excerpt, row in zip(chosen, self._store.rows(ids), strict=True):
            start, end = excerpt.lines
            chunk = Chunk(
                release=last_release(self._index.value("releases", excerpt.position).split(" "), query),
                path=row.path,
                start_line=start,
                end_line=end,
                symbol=row.piece.symbol,
                kind=row.piece.kind,
                archs=row.piece.archs,
                text="\n".join(self._store.text(row.file_key)[start - 1 : end]),
            )
            yield Hit(
                chunk=chunk,
                score=round(float(scores[excerpt.position]), 6),
                matched=(row.piece.start_line, row.piece.end_line),
                twins=tuple(dict.fromkeys(path for path in self._paths(excerpt.twins) if path != row.path)),
            )

    def _paths(self, positions: Sequence[int]) -> list[str]:
        return [self._index.value("path", position) for position in positions]


def _within_budget(hits: Sequence[Hit], tokens: int) -> Iterator[Hit]:
    """The hits within a number of tokens. A hit above its share of the rest is cut to the lines that matched, or left out."""
    left = tokens
    for place, hit in enumerate(hits):
        if tokens:
            if hit.chunk.tokens > left / (len(hits) - place):
                hit = _cut_to_match(hit)
            if hit.chunk.tokens > left:
                continue
            left -= hit.chunk.tokens
        yield hit


def _cut_to_match(hit: Hit) -> Hit:
    if hit.matched is None:
        return hit
    start, end = hit.matched
    lines = hit.chunk.text.split("\n")[start - hit.chunk.start_line : end - hit.chunk.start_line + 1]
    chunk = hit.chunk.model_copy(update={"start_line": start, "end_line": end, "text": "\n".join(lines)})
    return hit.model_copy(update={"chunk": chunk})


def open_search(
    store: Pieces,
    weights: SearchWeights | None = None,
    glossary: Glossary | None = None,
    asker: Embedder | None = None,
) -> Retriever:
    """Search over what the store shows. `asker`: the model that compares questions with the glossary's sentences.

    Raises: KnowledgeError if the lexical index is damaged or a model is not installed.
    """
    glossary, asker = glossary or load_glossary(), asker or StaticModel()
    concepts = Concepts(glossary, asker.embed)
    return Searcher(store, LexicalIndex(store.lexical_dir), concepts, weights or SearchWeights())
