"""BM25 over short texts: built at once for a whole corpus, and memory-mapped for the search.

An update rebuilds the index, and existing libraries are too slow for that: they score text by text in Python, which takes
most of the update for 20,000 pieces, and search with an unbuffered add per word. A test compares the scores with theirs.
"""

import json
from collections.abc import Iterable, Sequence
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

Scores = NDArray[np.float32]

_K1, _B = 1.5, 0.75
_WORDS = "words.json"


class WordIndex:
    """A sparse matrix: word w occurs in `texts[bounds[w]:bounds[w + 1]]`, each with a score."""

    def __init__(
        self, words: dict[str, int], count: int, bounds: NDArray[np.int64], texts: NDArray[np.int32], scores: Scores
    ) -> None:
        self._words = words
        self._count = count
        self._bounds = bounds
        self._texts = texts
        self._scores = scores

    @classmethod
    def build(cls, corpus: Iterable[Iterable[str]]) -> "WordIndex":
        """The index of texts, given as their words. Repeated words of a text count repeatedly.

        Source: BM25 in the form of Lucene (Kamphuis et al., Which BM25 do you mean?, ECIR 2020).
        """
        words: dict[str, int] = {}
        codes: list[int] = []
        lengths: list[int] = []
        for text in corpus:
            before = len(codes)
            codes += [words.setdefault(word, len(words)) for word in text]
            lengths.append(len(codes) - before)
        return cls(words, len(lengths), *_matrix(np.array(codes, np.int64), np.array(lengths, np.int64), len(words)))

    def scores(self, words: Sequence[str]) -> Scores:
        """The scores of all texts for these words. A repeated word counts repeatedly. Shape: (texts,)."""
        total = np.zeros(self._count, np.float32)
        for word in words:
            span = self._span(word)
            total[self._texts[span]] += self._scores[span]
        return total

    def holding(self, word: str) -> NDArray[np.int32]:
        """The texts that contain a word, in order."""
        return self._texts[self._span(word)]

    def _span(self, word: str) -> slice:
        code = self._words.get(word)
        return slice(0, 0) if code is None else slice(int(self._bounds[code]), int(self._bounds[code + 1]))

    def save(self, folder: Path) -> None:
        folder.mkdir(parents=True, exist_ok=True)
        np.save(folder / "bounds.npy", self._bounds)
        np.save(folder / "texts.npy", self._texts)
        np.save(folder / "scores.npy", self._scores)
        known = {"count": self._count, "words": list(self._words)}
        (folder / _WORDS).write_text(json.dumps(known), encoding="utf-8")

    @classmethod
    def load(cls, folder: Path) -> "WordIndex":
        """Map the arrays, so that a search reads only the words of the query.

        Raises: OSError, ValueError, KeyError, EOFError.
        """
        known = json.loads((folder / _WORDS).read_text(encoding="utf-8"))
        arrays = (np.asarray(np.load(folder / f"{name}.npy", mmap_mode="r")) for name in ("bounds", "texts", "scores"))
        return cls({word: code for code, word in enumerate(known["words"])}, int(known["count"]), *arrays)


def _matrix(
    codes: NDArray[np.int64], lengths: NDArray[np.int64], words: int
) -> tuple[NDArray[np.int64], NDArray[np.int32], Scores]:
    """(bounds, texts, scores) from the concatenated words of all texts and the number of words of each text."""
    count = max(len(lengths), 1)
    owners = np.repeat(np.arange(len(lengths)), lengths)
    pairs, repeats = np.unique(codes * count + owners, return_counts=True)
    word, text = np.divmod(pairs, count)
    frequency = np.bincount(word, minlength=words)
    rarity = np.log(1 + (count - frequency + 0.5) / (frequency + 0.5))
    relative = lengths / max(float(lengths.sum()) / count, 1e-9)
    scores = rarity[word] * repeats / (repeats + _K1 * (1 - _B + _B * relative[text]))
    bounds = np.concatenate([[0], np.cumsum(frequency)])
    return bounds.astype(np.int64), text.astype(np.int32), scores.astype(np.float32)
