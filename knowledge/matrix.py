"""BM25 scores of a whole corpus computed at once, in the form that bm25s keeps, saves and searches.

bm25s computes the same numbers text by text; over 20,000 pieces that takes most of an update's time. A test compares both.
"""

from collections.abc import Iterable

import bm25s
import numpy as np
from numpy.typing import NDArray

_K1, _B = 1.5, 0.75  # the defaults of bm25s
_NO_WORD = "\0"  # an index needs a word; this is one that no query has


def index_texts(texts: Iterable[str]) -> bm25s.BM25:
    """The index of texts whose words are separated by spaces; a text without words scores 0.

    Source: BM25 in the form of Lucene (Kamphuis et al., Which BM25 do you mean?, ECIR 2020).
    """
    vocabulary: dict[str, int] = {_NO_WORD: 0}
    words: list[int] = []
    lengths: list[int] = []
    for text in texts:
        found = text.split()
        words += [vocabulary.setdefault(word, len(vocabulary)) for word in found]
        lengths.append(len(found))
    index = bm25s.BM25(k1=_K1, b=_B)
    index.nonoccurrence_array = None  # of the variants in which an absent word scores; this is not one
    index.vocab_dict = vocabulary
    index.unique_token_ids_set = set(vocabulary.values())
    index.scores = _columns(np.array(words, np.int64), np.array(lengths, np.int64), len(vocabulary))
    return index


def texts_with(index: bm25s.BM25, word: str) -> NDArray[np.int32]:
    """Positions of the texts that hold a word, in their order."""
    code = index.vocab_dict.get(word)
    if code is None:
        return np.zeros(0, np.int32)
    bounds = index.scores["indptr"]
    found: NDArray[np.int32] = index.scores["indices"][bounds[code] : bounds[code + 1]]
    return found


def _columns(words: NDArray[np.int64], lengths: NDArray[np.int64], vocabulary: int) -> dict[str, object]:
    """A sparse matrix by word: the texts that hold it, and what it scores in each."""
    count = max(len(lengths), 1)
    texts = np.repeat(np.arange(len(lengths)), lengths)
    pairs, repeats = np.unique(words * count + texts, return_counts=True)
    word, text = np.divmod(pairs, count)
    frequency = np.bincount(word, minlength=vocabulary)
    rarity = np.log(1 + (count - frequency + 0.5) / (frequency + 0.5))
    relative = lengths / max(float(lengths.mean()), 1e-9) if len(lengths) else lengths
    scores = rarity[word] * repeats / (repeats + _K1 * (1 - _B + _B * relative[text]))
    bounds = np.concatenate([[0], np.cumsum(frequency)])
    return {
        "data": scores.astype(np.float32),
        "indices": text.astype(np.int32),
        "indptr": bounds.astype(np.int64),
        "num_docs": count,
    }
