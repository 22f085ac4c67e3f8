"""Loops of a function as spans of instructions, and how far a register's life reaches that crosses their borders.

The text may be hostile: a life costs a bounded number of look-ups, however many loops there are.
"""

import bisect
from collections.abc import Sequence
from typing import Any

import numpy as np

Span = tuple[int, int]  # first and last instruction
MAX_STEPS = 64


class Loops:
    """Spans of loops among `count` instructions."""

    def __init__(self, spans: Sequence[Span], count: int) -> None:
        first_by_last, last_by_first = np.full(count, count), np.full(count, -1)
        if spans:
            firsts, lasts = np.array(spans).T
            np.minimum.at(first_by_last, lasts, firsts)
            np.maximum.at(last_by_first, firsts, lasts)
        self._first = _Extremes(np.minimum, first_by_last)
        self._last = _Extremes(np.maximum, last_by_first)
        self._merged = _merged(spans)
        self._starts = [first for first, _ in self._merged]

    def around(self, start: int, end: int) -> Span:
        """A life with every loop that it touches, and those that these touch."""
        at = max(bisect.bisect_right(self._starts, start) - 1, 0)
        for first, last in self._merged[at:]:
            if first > end:
                break
            if last >= start:
                start, end = min(start, first), max(end, last)
        return start, end

    def across(self, start: int, end: int) -> Span:
        """A life with every loop whose border it crosses; a loop that it lies in is none."""
        for _ in range(MAX_STEPS):
            if start == end:
                return start, end
            first, last = self._first.within(start, end - 1), self._last.within(start + 1, end)
            if first >= start and last <= end:
                return start, end
            start, end = min(start, first), max(end, last)
        return self.around(start, end)


class _Extremes:
    """The minimum or maximum in any span, from a table of those in spans of every power of two."""

    def __init__(self, choose: Any, values: Any) -> None:
        self._choose = choose
        self._levels = [values]
        while (half := 1 << (len(self._levels) - 1)) * 2 <= len(values):
            level = self._levels[-1]
            self._levels.append(choose(level[:-half], level[half:]))

    def within(self, start: int, end: int) -> int:
        level = (end - start + 1).bit_length() - 1
        table = self._levels[level]
        return int(self._choose(table[start], table[end + 1 - (1 << level)]))


def _merged(spans: Sequence[Span]) -> list[Span]:
    """Spans joined where they overlap, in order."""
    merged: list[Span] = []
    for first, last in sorted(spans):
        if merged and first <= merged[-1][1]:
            merged[-1] = merged[-1][0], max(last, merged[-1][1])
        else:
            merged.append((first, last))
    return merged
