"""Which concepts of the glossary a question is about: by their names, by the words of their sentences, by meaning."""

import re
from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import cached_property

import numpy as np
from numpy.typing import NDArray

from knowledge.glossary import Glossary
from knowledge.tokens import words_of
from knowledge.word_index import WordIndex

Vectors = NDArray[np.float32]
Embed = Callable[[Sequence[str]], Vectors]  # rows of unit length

_LETTERS = re.compile(r"[a-z0-9]+")


@dataclass(frozen=True)
class ConceptWeights:
    """What each sign counts, how many concepts are taken, and how steeply those behind the first fall off."""

    meaning: float = 1.0
    words: float = 0.5
    names: float = 0.2
    count: int = 6
    least: float = 0.35
    steepness: float = 3.0


class Concepts:
    """`embed` gives the vector of a question; `asks`: those of the glossary's sentences, in their order."""

    def __init__(self, glossary: Glossary, embed: Embed, asks: Vectors) -> None:
        self.glossary = glossary
        self._embed = embed
        self._asks = asks
        self._owner = np.array([concept for concept, _ in glossary.asks], np.int64)
        self._names = [[_plain(term) for term in concept.terms] for concept in glossary.concepts]
        self._shared = Counter(tuple(name) for names in self._names for name in names)

    def match(self, question: str, weights: ConceptWeights) -> list[tuple[int, float]]:
        """(concept, weight up to 1) of those that the question is about, the closest first."""
        if not self.glossary.concepts:
            return []
        score = weights.meaning * self._meaning(question) if weights.meaning else np.zeros(len(self.glossary.concepts))
        score = score + weights.words * self._words(question) + weights.names * self._named(question)
        order = np.argsort(-score, kind="stable")[: weights.count]
        best = float(score[order[0]])
        return [(int(c), (float(score[c]) / best) ** weights.steepness) for c in order if score[c] > weights.least]

    def _meaning(self, question: str) -> NDArray[np.float64]:
        """The closest of a concept's sentences to the question, as cosine."""
        score = np.zeros(len(self.glossary.concepts))
        np.maximum.at(score, self._owner, (self._asks @ self._embed([question])[0]).astype(np.float64))
        return score

    def _words(self, question: str) -> NDArray[np.float64]:
        """BM25 over all the sentences and names of a concept, against the best one's."""
        score = self._index.scores(words_of(question)).astype(np.float64)
        return score / max(float(score.max(initial=0.0)), 1e-6)

    @cached_property
    def _index(self) -> WordIndex:
        concepts = self.glossary.concepts
        return WordIndex.build(words_of(" ".join([*each.asks, *each.terms, each.name])) for each in concepts)

    def _named(self, question: str) -> NDArray[np.float64]:
        """How well a name that stands in the question tells the concept: long ones do, shared ones less."""
        said = f" {' '.join(_plain(question))} "
        score = np.zeros(len(self._names))
        for concept, names in enumerate(self._names):
            for name in names:
                if name and f" {' '.join(name)} " in said:
                    sure = min(1.0, 0.4 + 0.3 * len(name)) / self._shared[tuple(name)] ** 0.5
                    score[concept] = max(score[concept], sure)
        return score


def _plain(text: str) -> list[str]:
    """Lower-case runs of letters and digits without an English plural's s."""
    words = _LETTERS.findall(text.lower())
    return [word[:-1] if len(word) > 3 and word.endswith("s") and not word.endswith("ss") else word for word in words]
