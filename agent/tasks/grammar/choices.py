"""Choices by a seed, the same on every machine and in every version of Python."""

import hashlib
import random
from collections.abc import Sequence
from typing import TypeVar

T = TypeVar("T")


class Choices:
    """Choices. `random` promises the same sequence of `random()` for a whole number as seed, and of no other method."""

    def __init__(self, *key: object) -> None:
        text = "/".join(map(str, key))
        self._source = random.Random(int.from_bytes(hashlib.sha256(text.encode()).digest(), "big"))

    def pick(self, options: Sequence[T]) -> T:
        return options[int(self._source.random() * len(options))]

    def weighted(self, options: Sequence[tuple[int, T]]) -> T:
        """One of the options, by weight."""
        place = self._source.random() * sum(weight for weight, _ in options)
        for weight, option in options:
            place -= weight
            if place < 0:
                return option
        return options[-1][1]

    def chance(self, probability: float) -> bool:
        return self._source.random() < probability

    def whole(self, low: int, high: int) -> int:
        """From `low` to `high`, both included."""
        return low + int(self._source.random() * (high - low + 1))
