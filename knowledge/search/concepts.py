"""Finds the glossary's concepts in a question: by their names, by the words of their sentences, and by meaning."""

import re
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from functools import cached_property, lru_cache

import numpy as np
from numpy.typing import NDArray

from cudal2_agent.knowledge.embedding.embedder import Vectors, unit_rows
from cudal2_agent.knowledge.glossary.glossary import Glossary
from cudal2_agent.knowledge.lexical.analysis import STOP_WORDS, words_of
from cudal2_agent.knowledge.lexical.word_index import WordIndex

Embed = Callable[[Sequence[str]], Vectors]  # rows of unit length

_LETTERS = re.compile(r"[a-z0-9]+")


SURE = 0.4  # confidence that 95 of 100 development questions have


@dataclass(frozen=True)
class ConceptWeights:
    """The weight of each signal, the number of concepts, the minimum score, and the exponent of relative scores.

    `enough`: BM25 that counts in full; 95 of 100 development questions reach it. `confidence`: the share of `meaning` and
    `words` that the best concept must reach; below it the question is about none. A question that is a concept's name does.
    """

    meaning: float = 1.0
    words: float = 0.5
    names: float = 0.2
    count: int = 6
    min_score: float = 0.35
    steepness: float = 3.0
    enough: float = 7.0
    confidence: float = 0.0


class Concepts:
    """Matches questions with a glossary. `embed`: the model that compares questions with the glossary's sentences."""

    def __init__(self, glossary: Glossary, embed: Embed) -> None:
        self.glossary = glossary
        self._embed = embed
        self._owner = np.array([concept for concept, _ in glossary.asks], np.int64)
        self._names = list(_names(glossary))

    def match(self, question: str, weights: ConceptWeights) -> list[tuple[int, float]]:
        """(concept, weight up to 1) for the concepts of a question, best match first; none where no match is good enough."""
        if not self.glossary.concepts:
            return []
        score = weights.meaning * self._meaning(question) if weights.meaning else np.zeros(len(self.glossary.concepts))
        score = score + weights.words * self._words(question, weights.enough) + weights.names * self._named(question)
        score = score + SURE * (weights.meaning + weights.words) * self._asked(question)
        order = np.argsort(-score, kind="stable")[: weights.count]
        best = float(score[order[0]])
        if best < weights.confidence * (weights.meaning + weights.words):
            return []
        return [(int(c), (float(score[c]) / best) ** weights.steepness) for c in order if score[c] > weights.min_score]

    def _meaning(self, question: str) -> NDArray[np.float64]:
        """The maximum cosine similarity of a concept's sentences with the question, after removal of the mean vector."""
        score = np.zeros(len(self.glossary.concepts))
        if not self.glossary.asks:
            return score
        common, asks = self._asks
        asked = unit_rows(self._embed([question]) - common)[0]
        # Not `@`: for so small a product, starting the threads of a BLAS library takes longer than the product.
        np.maximum.at(score, self._owner, np.einsum("ij,j->i", asks, asked).astype(np.float64))
        return score

    @cached_property
    def _asks(self) -> tuple[Vectors, Vectors]:
        """The mean of the sentences' vectors, and the vectors without it, as unit rows.

        Source: Mu and Viswanath, All-but-the-top (ICLR 2018): the common component hides the differences.
        """
        vectors = self._embed([ask for _, ask in self.glossary.asks])
        common: Vectors = vectors.mean(axis=0, keepdims=True)
        return common, unit_rows(vectors - common)

    def _words(self, question: str, enough: float) -> NDArray[np.float64]:
        """BM25 over all sentences and names of each concept, relative to the best concept, or to what is enough."""
        score = self._index.scores(words_of(question)).astype(np.float64)
        return score / max(float(score.max(initial=0.0)), enough)

    @cached_property
    def code_words(self) -> tuple[tuple[str, ...], ...]:
        """The search words of the code of each concept."""
        return tuple(tuple(dict.fromkeys(words_of(" ".join(concept.code)))) for concept in self.glossary.concepts)

    @cached_property
    def _index(self) -> WordIndex:
        concepts = self.glossary.concepts
        return WordIndex.build(words_of(" ".join([*each.asks, *each.terms, each.name])) for each in concepts)

    def _named(self, question: str) -> NDArray[np.float64]:
        """The score of each concept by its names that occur in the question."""
        said = f" {_plain(question)} "
        score = np.zeros(len(self.glossary.concepts))
        for name, concept, sure in self._names:
            if name in said:
                score[concept] = max(score[concept], sure)
        return score

    def _asked(self, question: str) -> NDArray[np.float64]:
        """1 for each concept whose name is all that the question says."""
        said = _telling(_plain(question))
        score = np.zeros(len(self.glossary.concepts))
        score[[concept for name, concept, _ in self._names if _telling(name) == said]] = 1
        return score


def _names(glossary: Glossary) -> Iterator[tuple[str, int, float]]:
    """(name between spaces, concept, score). Long names score higher; names of several concepts score lower."""
    names = [(_plain(term), concept) for concept, each in enumerate(glossary.concepts) for term in each.terms if _plain(term)]
    shared = Counter(name for name, _ in names)
    for name, concept in names:
        yield f" {name} ", concept, min(1.0, 0.4 + 0.3 * len(name.split())) / shared[name] ** 0.5


def _plain(text: str) -> str:
    """Lower-case words without an English plural ending, joined by spaces."""
    words = _LETTERS.findall(text.lower())
    return " ".join(word[:-1] if len(word) > 3 and word.endswith("s") and not word.endswith("ss") else word for word in words)


@lru_cache(maxsize=1 << 13)
def _telling(plain: str) -> tuple[str, ...]:
    return tuple(word for word in plain.split() if word not in STOP_WORDS)
