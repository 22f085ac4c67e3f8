"""What is shown of a piece that was found: its whole definition where that is short enough, else its surroundings."""

import numpy as np

from knowledge.lexical import Lexical

MOST_LINES = 148
Lines = tuple[int, int]


def grow(index: Lexical, position: int, most_lines: int = MOST_LINES) -> Lines:
    """Lines around a piece, its own always among them: its definition, then neighbouring pieces of the file as they fit."""
    start, end = own_lines(index, position)
    if end - start >= most_lines:
        return start, end
    outer = int(index.column("outer_start")[position]), int(index.column("outer_end")[position])
    if max(end, outer[1]) - min(start, outer[0]) < most_lines:
        start, end = min(start, outer[0]), max(end, outer[1])
    before, after = _neighbours(index, position, start, end)
    while before or after:
        if after:
            low, high = own_lines(index, after.pop(0))
            end, after = (max(end, high), after) if max(end, high) - start < most_lines else (end, [])
        if before:
            low, high = own_lines(index, before.pop(0))
            start, before = (min(start, low), before) if end - min(start, low) < most_lines else (start, [])
    return start, end


def _neighbours(index: Lexical, position: int, start: int, end: int) -> tuple[list[int], list[int]]:
    """Positions of the same file before these lines, the nearest first, and after them."""
    paths = index.column("path")
    reach = 40
    near = range(max(position - reach, 0), min(position + reach + 1, len(index)))
    # A path may stand in several versions, whose pieces follow each other: line numbers fall where the next one begins.
    same = [p for p in near if paths[p] == paths[position]]
    starts = index.column("start")
    cut = [p for p in same[1:] if starts[p] < starts[p - 1]]
    first = max((p for p in cut if p <= position), default=same[0])
    last = min((p for p in cut if p > position), default=same[-1] + 1)
    inside = [p for p in same if first <= p < last]
    before = [p for p in reversed(inside) if index.column("end")[p] < start]
    after = [p for p in inside if starts[p] > end]
    return before, after


def own_lines(index: Lexical, position: int) -> Lines:
    return int(index.column("start")[position]), int(index.column("end")[position])


def overlap(one: Lines, other: Lines) -> bool:
    return one[0] <= other[1] and other[0] <= one[1]


def tokens_of(text: str) -> int:
    """What a text takes of a prompt, at three and a half characters a token, as code runs."""
    return int(np.ceil(len(text) / 3.5))
