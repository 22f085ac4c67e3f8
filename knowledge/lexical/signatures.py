"""MinHash signatures that identify near-equal pieces, such as the same code written for several targets."""

import re
import zlib
from collections.abc import Iterable, Sequence
from functools import lru_cache

import numpy as np
from numpy.typing import NDArray

HASHES = 16
_SEEDS = np.random.default_rng(2512).integers(1, 2**32, (2, HASHES), dtype=np.uint64)
_TARGET = re.compile(r"(?<![a-z])(sm)_?\d+[a-z]?")


def signature(words: Iterable[str]) -> NDArray[np.uint32]:
    """MinHash of a set of words without target numbers. Shape: (HASHES,).

    Source: Broder, On the resemblance and containment of documents (1997).
    """
    codes = set(map(_code, words))
    if not codes:
        return np.zeros(HASHES, np.uint32)
    values = np.fromiter(codes, np.uint64, len(codes))[:, None] * _SEEDS[0] + _SEEDS[1]
    smallest: NDArray[np.uint32] = (values >> np.uint64(32)).min(axis=0).astype(np.uint32)
    return smallest


def packed(words: Iterable[str]) -> str:
    """The signature of a set of words as text."""
    return signature(words).tobytes().hex()


def unpacked(texts: Sequence[str]) -> NDArray[np.uint32]:
    """Signatures from their texts. Shape: (texts, HASHES)."""
    return np.frombuffer(bytes.fromhex("".join(texts)), np.uint32).reshape(len(texts), HASHES)


@lru_cache(maxsize=1 << 18)
def _code(word: str) -> int:
    return zlib.crc32(_TARGET.sub(r"\1", word).encode("utf-8", "surrogatepass"))


def likeness(signatures: NDArray[np.uint32], other: NDArray[np.uint32]) -> NDArray[np.float64]:
    """Estimated Jaccard similarity of each row with one signature. Shape: (rows,)."""
    alike: NDArray[np.float64] = (signatures == other).mean(axis=1)
    return alike


def same_name(symbols: Sequence[str]) -> bool:
    """Whether symbols differ only in their target, such as `Sm90Compute` and `Sm100Compute`."""
    return len({_TARGET.sub(r"\1", symbol.rsplit("::", 1)[-1].lower()) for symbol in symbols}) == 1
