"""Splits by shape: which shapes are kept for testing, and which shapes a text names."""

import hashlib
import re
from collections.abc import Iterator, Sequence
from functools import lru_cache
from typing import Any, Literal

from cudal2_agent.contract.base import digest
from cudal2_agent.contract.records.task import parse_shape

Split = Literal["train", "test"]
Shape = tuple[int, int, int]
TRAIN: Split = "train"
TEST: Split = "test"

_SIZE = "([0-9]{1,9})"
_BETWEEN = r"[ \t\n]{0,3}(?:[xX×*_,]|by)[ \t\n]{0,3}"
# 4096x1024x512, 4096 x 1024 x 512, (4096, 1024, 512); the lookahead finds overlapping ones.
_BARE = re.compile(rf"{_SIZE}(?={_BETWEEN}{_SIZE}{_BETWEEN}{_SIZE}(?![0-9]))")
# M = 4096, N = 1024, K = 512; "m": 4096, "n": 1024, "k": 512; M==4096 && N==1024 && K==512.
_NAMED = re.compile(r"[^0-9]{1,30}?\b".join(rf"[{name}]\b[^0-9]{{0,12}}?{_SIZE}\b" for name in ("mM", "nN", "kK")))


class ShapeSplit:
    """Says which shapes are for testing: those listed, and a share of the others by a hash of seed and (M, N, K).

    All element types, layouts, targets and chips of a shape are in one split. Raises: UsageError for a malformed shape.
    """

    def __init__(self, test_share: float = 0.0, test_shapes: Sequence[str] = (), seed: int = 0) -> None:
        self._share, self._seed = test_share, seed
        self.listed = frozenset(parse_shape(text) for text in test_shapes)

    @property
    def divides(self) -> bool:
        return self._share > 0 or bool(self.listed)

    def of(self, shape: Shape | str) -> Split:
        """The split of a shape, or of a module by its `module_key`."""
        if shape in self.listed:
            return TEST
        text = shape if isinstance(shape, str) else "x".join(map(str, shape))
        drawn = hashlib.sha256(f"{self._seed}/{text}".encode()).digest()
        return TEST if int.from_bytes(drawn[:8], "big") < self._share * 2**64 else TRAIN

    def test_shapes_in(self, row: dict[str, Any]) -> set[Shape]:
        """The shapes for testing that a row's text names, whether or not there is such a task."""
        return {shape for text in texts_of(row) for shape in shapes_in(text) if self.of(shape) == TEST}


def module_key(problem: str) -> str:
    """One text for a problem file at all its sizes, whatever it is named."""
    return digest(re.sub(r"[0-9]+", "0", problem).split())


def texts_of(value: Any) -> Iterator[str]:
    """Every string in a row."""
    if isinstance(value, str):
        yield value
    elif isinstance(value, dict):
        yield from (text for part in value.values() for text in texts_of(part))
    elif isinstance(value, list | tuple):
        yield from (text for part in value for text in texts_of(part))


@lru_cache(maxsize=64)  # the rows of an observation share their prompt
def shapes_in(text: str) -> frozenset[Shape]:
    """Every M, N, K that a text names, and triples that only look like one, such as the sizes of a tile."""
    found = [*_BARE.findall(text), *_NAMED.findall(text)]
    return frozenset((int(m), int(n), int(k)) for m, n, k in found)
