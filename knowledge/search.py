"""Hybrid search over the published releases: words, vectors and the glossary's concepts, fused by rank.

A question is asked in three ways: BM25 over names, cards and bodies; the nearest vectors; and the definitions that the
glossary names for the concepts that the question is about. Their ranks are fused, special variants that were not asked
for step back, near-equal twins are folded into one hit, and a hit is shown with its enclosing definition.
"""

import re
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from fnmatch import fnmatchcase
from pathlib import Path
from typing import Literal, Protocol

import numpy as np

from contract.base import Record
from contract.knowledge import Chunk, Hit, Query, Retriever, arch_number, fits
from knowledge.concepts import Concepts, ConceptWeights
from knowledge.embedding.embedder import Embedder, Vectors
from knowledge.embedding.static import StaticModel
from knowledge.excerpts import Lines, grow, overlap, own_lines, tokens_of
from knowledge.fusion import Scores, best, by_rank, by_score
from knowledge.glossary import Glossary, load_glossary
from knowledge.lexical import Lexical, Mask
from knowledge.signatures import likeness, same_name
from knowledge.store.rows import Row
from knowledge.tokens import words_of
from knowledge.variants import factors

_NEAREST = 300
_CANDIDATES = 400


class SearchWeights(Record):
    """What each sign counts, found on the development questions (docs/knowledge.md); 0 switches it off."""

    names: float = 0.5
    card: float = 0.5
    body: float = 1.0
    lexical: float = 1.0
    dense: float = 0.15
    concepts: float = 1.5
    concept_words: float = 0.3  # words of a concept's code, against the places it names
    meaning: float = 1.0  # of a concept's sentences, against their words
    variant: float = 0.85  # each special variant that was not asked for
    other_arch: float = 0.6  # code for a target other than the query's
    older: float = 0.9  # a version of a path that a later release has replaced
    fusion: Literal["score", "rank"] = "rank"
    smoothing: float = 30.0  # of the fusion by rank
    distinct: int = 5  # the first hits are of as many files
    per_file: int = 3
    alike: float = 0.8  # likeness from which pieces of one name are folded; above 1: never


@dataclass(frozen=True)
class _Choice:
    """A piece to be shown, its lines with its surroundings, and the pieces folded into it."""

    position: int
    lines: Lines
    twins: list[int]


class Pieces(Protocol):
    """What search reads of the store."""

    @property
    def lexical_dir(self) -> Path: ...
    def rows(self, piece_ids: Sequence[int]) -> list[Row]: ...
    def text(self, file_key: str) -> tuple[str, ...]: ...
    def nearest(self, vector: Vectors, count: int, ids: Sequence[str] | None = None) -> list[tuple[str, float]]: ...
    def embed_query(self, words: str) -> Vectors: ...


class Searcher:
    """`contract.knowledge.Retriever` over one published state of the store."""

    def __init__(self, store: Pieces, index: Lexical, concepts: Concepts, weights: SearchWeights) -> None:
        self._store = store
        self._index = index
        self._anchors = index.anchors(concepts.glossary)
        self._concepts = concepts
        self._weights = weights

    def search(self, query: Query) -> list[Hit]:
        """Raises: KnowledgeError where the store cannot be read any more."""
        if not query.count or not words_of(query.words) or not len(self._index):
            return []
        scores = self._scores(query)
        chosen = self._choose([int(position) for position in best(scores, _CANDIDATES)], query.count)
        return list(_within_budget(list(self._hits(chosen, scores, query)), query.tokens))

    def _scores(self, query: Query) -> Scores:
        """One number for every position; 0 where a filter leaves it out."""
        weights, mask = self._weights, self._mask(query)
        if not mask.any():
            return np.zeros(len(self._index), np.float32)
        factor = mask * self._variants(query) * self._targets(query) * self._versions(query, mask)
        signs = [
            (self._lexical(_asked_words(query.words)) * factor, weights.lexical),
            (self._concept_places(query.words) * factor, weights.concepts),
            (self._dense(query.words, mask) * factor, weights.dense),
        ]
        return by_score(signs) if weights.fusion == "score" else by_rank(signs, weights.smoothing)

    def _lexical(self, words: Sequence[str]) -> Scores:
        total = np.zeros(len(self._index), np.float32)
        for field in ("names", "card", "body"):
            if weight := getattr(self._weights, field):
                total += weight * self._index.scores(field, words)
        return total

    def _concept_places(self, question: str) -> Scores:
        """The definitions that the glossary names, and pieces with their words, by how close the concept is."""
        total = np.zeros(len(self._index), np.float32)
        if not self._weights.concepts:
            return total
        for concept, weight in self._concepts.match(question, ConceptWeights(meaning=self._weights.meaning)):
            places, shares = self._anchors.of(concept)
            total[places] += weight * shares
            if self._weights.concept_words:
                near = self._lexical(self._concepts.code_words[concept])
                total += np.float32(weight * self._weights.concept_words / max(float(near.max()), 1e-6)) * near
        # The glossary names code; its words would only draw documents away from the question's own.
        return total * self._index.where("kind", (kind != "section" for kind in self._index.values("kind")))

    def _dense(self, question: str, mask: Mask) -> Scores:
        total = np.zeros(len(self._index), np.float32)
        if not self._weights.dense or not self._index.positions_of_vector:
            return total
        narrow = self._vectors_of(mask) if mask.mean() < 0.2 else None
        if narrow == []:
            return total
        for vector_id, distance in self._store.nearest(self._store.embed_query(question), _NEAREST, narrow):
            for position in self._index.positions_of_vector.get(vector_id, ()):
                total[position] = max(1.0 - distance, 0.0)
        return total

    def _vectors_of(self, mask: Mask) -> list[str] | None:
        """The vectors that a narrow filter leaves; none to mean all where they are too many to list."""
        kept = set(np.flatnonzero(mask).tolist())
        found = [vector for vector, places in self._index.positions_of_vector.items() if not kept.isdisjoint(places)]
        return found if len(found) <= 2000 else None

    def _mask(self, query: Query) -> Mask:
        index = self._index
        mask = np.ones(len(index), np.bool_)
        if query.releases:
            wanted = set(query.releases)
            mask &= index.where("releases", (not wanted.isdisjoint(names.split(" ")) for names in index.values("releases")))
        if query.kinds:
            mask &= index.where("kind", (kind in query.kinds for kind in index.values("kind")))
        if query.path:
            mask &= index.where("path", (_inside(path, query.path) for path in index.values("path")))
        if query.only_arch and query.arch:
            mask &= index.where("archs", (fits(tags.split(), query.arch) for tags in index.values("archs")))
        return mask

    def _variants(self, query: Query) -> Scores:
        asked = f"{query.words} sm{arch_number(query.arch)}" if query.arch else query.words
        each: Scores = factors(self._index.values("path"), asked, self._weights.variant)[self._index.column("path")]
        return each

    def _targets(self, query: Query) -> Scores:
        other = [1.0 if fits(tags.split(), query.arch) else self._weights.other_arch for tags in self._index.values("archs")]
        factor: Scores = np.array(other or [1.0], np.float32)[self._index.column("archs")]
        return factor

    def _versions(self, query: Query, mask: Mask) -> Scores:
        """Of a path that several releases hold in different versions, the last one's before the others."""
        index, path = self._index, self._index.column("path")
        last = [_last(names.split(" "), query) for names in index.values("releases")]
        places = {name: place for place, name in enumerate(sorted(set(last), key=_age))}
        age = np.array([places[name] for name in last], np.int32)[index.column("releases")]
        latest = np.full(len(index.values("path")), -1, np.int32)
        np.maximum.at(latest, path[mask], age[mask])
        return np.where(age < latest[path], np.float32(self._weights.older), np.float32(1))

    def _choose(self, order: Sequence[int], count: int) -> list[_Choice]:
        """The first hits are of as many files, then come more of each; pieces that are shown already are left out."""
        first = self._pick(order, min(count, self._weights.distinct), 1, ())
        taken = {position for choice in first for position in (choice.position, *choice.twins)}
        return self._pick([p for p in order if p not in taken], count, self._weights.per_file, first)

    def _pick(self, order: Sequence[int], count: int, per_file: int, chosen: Sequence[_Choice]) -> list[_Choice]:
        index, picked = self._index, list(chosen)
        for position in order:
            if len(picked) == count:
                break
            path = index.value("path", position)
            if twin := self._twin(position, picked):
                twin.twins.append(position)
                continue
            shown = [choice.lines for choice in picked if index.value("path", choice.position) == path]
            if len(shown) < per_file and not any(overlap(own_lines(index, position), lines) for lines in shown):
                picked.append(_Choice(position, grow(index, position), []))
        return picked

    def _twin(self, position: int, picked: Sequence[_Choice]) -> _Choice | None:
        """The choice that shows nearly the same: a like body under the same name, in another file or another version of it."""
        if self._weights.alike > 1 or not picked:
            return None
        index = self._index
        alike = likeness(index.signatures[[choice.position for choice in picked]], index.signatures[position])
        for place in np.flatnonzero(alike >= self._weights.alike).tolist():
            names = [index.value("symbol", p) for p in (picked[place].position, position)]
            if not self._of_one_file(picked[place].position, position) and same_name(names):
                return picked[place]
        return None

    def _of_one_file(self, one: int, other: int) -> bool:
        """Whether two pieces are of one file version; no two versions of a path are in the same release."""
        return all(self._index.column(name)[one] == self._index.column(name)[other] for name in ("path", "releases"))

    def _hits(self, chosen: Sequence[_Choice], scores: Scores, query: Query) -> Iterator[Hit]:
        ids = [int(self._index.column("piece_id")[choice.position]) for choice in chosen]
        for choice, row in zip(chosen, self._store.rows(ids), strict=True):
            start, end = choice.lines
            chunk = Chunk(
                release=_last(self._index.value("releases", choice.position).split(" "), query),
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
                score=round(float(scores[choice.position]), 6),
                matched=(row.piece.start_line, row.piece.end_line),
                twins=tuple(dict.fromkeys(path for path in self._paths(choice.twins) if path != row.path)),
            )

    def _paths(self, positions: Sequence[int]) -> list[str]:
        return [self._index.value("path", position) for position in positions]


def _last(names: Sequence[str], query: Query) -> str:
    """The last release of those asked for; the last of all where none is."""
    return max([name for name in names if name in query.releases] or names, key=_age)


def _age(release: str) -> tuple[int | str, ...]:
    """Orders releases by name, 4.10 after 4.9."""
    return tuple(int(part) if part.isdigit() else part for part in re.split(r"(\d+)", release))


def _within_budget(hits: Sequence[Hit], tokens: int) -> Iterator[Hit]:
    """Hits until the tokens are spent: one that takes more than its share of what is left is cut to the lines that were
    found, or left out where even those are too many."""
    left = tokens
    for place, hit in enumerate(hits):
        if tokens:
            if tokens_of(hit.chunk.text) > left / (len(hits) - place):
                hit = _cut_to_match(hit)
            if tokens_of(hit.chunk.text) > left:
                continue
            left -= tokens_of(hit.chunk.text)
        yield hit


def _cut_to_match(hit: Hit) -> Hit:
    if hit.matched is None:
        return hit
    start, end = hit.matched
    lines = hit.chunk.text.split("\n")[start - hit.chunk.start_line : end - hit.chunk.start_line + 1]
    chunk = hit.chunk.model_copy(update={"start_line": start, "end_line": end, "text": "\n".join(lines)})
    return hit.model_copy(update={"chunk": chunk})


def _asked_words(question: str) -> list[str]:
    """The question's words, names that are made of several three times: who asks for `cp.async.bulk` means all of it."""
    words = words_of(question)
    return words + 2 * [word for word in words if any(mark in word for mark in "._:")]


def _inside(path: str, wanted: str) -> bool:
    if any(mark in wanted for mark in "*?["):
        return fnmatchcase(path, wanted)
    return path == wanted or path.startswith(wanted.rstrip("/") + "/")


def open_search(
    store: Pieces,
    weights: SearchWeights | None = None,
    glossary: Glossary | None = None,
    asker: Embedder | None = None,
) -> Retriever:
    """Search over what the store shows. `asker`: the model that compares questions with the glossary's sentences.

    Raises: KnowledgeError where the lexical index is damaged or a model is not installed.
    """
    glossary, asker = glossary or load_glossary(), asker or StaticModel()
    concepts = Concepts(glossary, asker.embed)
    return Searcher(store, Lexical(store.lexical_dir), concepts, weights or SearchWeights())
