"""Scores all pieces for a query: by words, names, vectors and the glossary's concepts, fused into one number."""

import re
from collections.abc import Sequence
from fnmatch import fnmatchcase
from typing import Protocol

import numpy as np

from cudal2_agent.contract.records.knowledge import Query, arch_number, fits
from cudal2_agent.knowledge.embedding.embedder import Vectors
from cudal2_agent.knowledge.lexical.analysis import FIELDS, words_of
from cudal2_agent.knowledge.lexical.lexical_index import LexicalIndex, Mask
from cudal2_agent.knowledge.lexical.word_index import Scores
from cudal2_agent.knowledge.search.concepts import SURE, Concepts, ConceptWeights
from cudal2_agent.knowledge.search.fusion import by_rank, by_score
from cudal2_agent.knowledge.search.names import emphasis, named_places
from cudal2_agent.knowledge.search.variants import factors
from cudal2_agent.knowledge.search.weights import SearchWeights


def last_release(names: Sequence[str], query: Query) -> str:
    """The latest release that the query names; the latest of all if it names none of them."""
    return max([name for name in names if name in query.releases] or names, key=release_age)


def release_age(release: str) -> tuple[int | str, ...]:
    """A sort key for release names: 4.10 is later than 4.9."""
    return tuple(int(part) if part.isdigit() else part for part in re.split(r"(\d+)", release))


_NEAREST = 300
_WORDS_OF_PLACE = 0.1  # weight of the words among places of one name
_MAX_LISTED = 2000  # vectors that a filter may list; above this all vectors are searched and then filtered


class VectorSearch(Protocol):
    """What scoring reads from the knowledge base."""

    def nearest(self, vector: Vectors, count: int, ids: Sequence[str] | None = None) -> list[tuple[str, float]]: ...
    def embed_query(self, words: str) -> Vectors: ...


class Scoring:
    """Scores over one generation of the index."""

    def __init__(self, store: VectorSearch, index: LexicalIndex, concepts: Concepts, weights: SearchWeights) -> None:
        self._store = store
        self._index = index
        self._anchors = index.anchors(concepts.glossary)
        self._concepts = concepts
        self._weights = weights

    def scores(self, query: Query) -> Scores:
        """One score per position; 0 if a filter excludes it."""
        weights, mask = self._weights, self._mask(query)
        if not mask.any():
            return np.zeros(len(self._index), np.float32)
        factor = mask * self._variants(query) * self._targets(query) * self._versions(query, mask)
        lexical = self._lexical(_asked_words(query.words)) * factor
        named = self._named(query.words, mask, lexical)
        concepts = self._concept_places(query.words, sure=query.sure or bool(named.any())) * factor
        if query.sure and not named.any() and not concepts.any():
            return np.zeros(len(self._index), np.float32)
        signals = [
            (lexical, weights.lexical),
            (named, weights.named * emphasis(query.words)),
            (concepts, weights.concepts),
            (self._dense(query.words, mask) * factor, weights.dense),
        ]
        return by_score(signals) if weights.fusion == "score" else by_rank(signals, weights.smoothing)

    def _lexical(self, words: Sequence[str]) -> Scores:
        total = np.zeros(len(self._index), np.float32)
        for field in FIELDS:
            if weight := getattr(self._weights, field):
                total += weight * self._index.scores(field, words)
        return total

    def _named(self, question: str, mask: Mask, lexical: Scores) -> Scores:
        """Scores of the places of names. Of equal places, the one that matches more words of the question comes first."""
        if not self._weights.named:
            return np.zeros(len(self._index), np.float32)
        places = named_places(self._index, question, mask)
        return places * (1 + _WORDS_OF_PLACE * lexical / max(float(lexical.max()), 1e-6))

    def _concept_places(self, question: str, *, sure: bool) -> Scores:
        """Scores of the definitions that the matched concepts name, and of pieces with the words of their code.

        `sure`: only above a confidence. Without a name in the question, a weak match is still the best that there is.
        """
        total = np.zeros(len(self._index), np.float32)
        if not self._weights.concepts:
            return total
        weights = ConceptWeights(meaning=self._weights.meaning, confidence=SURE if sure else 0.0)
        for concept, weight in self._concepts.match(question, weights):
            places, shares = self._anchors.of(concept)
            total[places] += weight * shares
            if self._weights.concept_words:
                near = self._lexical(self._concepts.code_words[concept])
                total += np.float32(weight * self._weights.concept_words / max(float(near.max()), 1e-6)) * near
        # The glossary names code. For documents, its words would only dilute those of the question.
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
        """The vectors that pass a narrow filter; None for all vectors if there are too many to list."""
        kept = set(np.flatnonzero(mask).tolist())
        found = [vector for vector, places in self._index.positions_of_vector.items() if not kept.isdisjoint(places)]
        return found if len(found) <= _MAX_LISTED else None

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
        factor: Scores = np.array(other, np.float32)[self._index.column("archs")]
        return factor

    def _versions(self, query: Query, mask: Mask) -> Scores:
        """The factor for versions of a path that a later release replaces."""
        index, path = self._index, self._index.column("path")
        last = [last_release(names.split(" "), query) for names in index.values("releases")]
        places = {name: place for place, name in enumerate(sorted(set(last), key=release_age))}
        age = np.array([places[name] for name in last], np.int32)[index.column("releases")]
        latest = np.full(len(index.values("path")), -1, np.int32)
        np.maximum.at(latest, path[mask], age[mask])
        return np.where(age < latest[path], np.float32(self._weights.older), np.float32(1))


def _asked_words(question: str) -> list[str]:
    """The words of the question. A compound name counts three times: `cp.async.bulk` should match as a whole."""
    words = words_of(question)
    return words + 2 * [word for word in words if any(mark in word for mark in "._:")]


def _inside(path: str, wanted: str) -> bool:
    if any(mark in wanted for mark in "*?["):
        return fnmatchcase(path, wanted)
    return path == wanted or path.startswith(wanted.rstrip("/") + "/")
