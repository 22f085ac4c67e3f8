"""Selects the pieces that are shown: distinct files first, near-equal pieces folded into one, no overlap."""

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from cudal2_agent.knowledge.lexical.lexical_index import LexicalIndex
from cudal2_agent.knowledge.lexical.signatures import likeness, same_name
from cudal2_agent.knowledge.search.weights import SearchWeights

MAX_LINES = 148
_REACH = 40  # positions before and after a piece that are searched for neighbours
LineSpan = tuple[int, int]


def grow(index: LexicalIndex, position: int, max_lines: int = MAX_LINES) -> LineSpan:
    """The lines of a piece, grown to its definition and then to neighbouring pieces of the file, within `max_lines`.

    A section of a document is shown alone, since it is written to be understood alone.
    """
    start, end = own_lines(index, position)
    if end - start >= max_lines:
        return start, end
    outer = int(index.column("outer_start")[position]), int(index.column("outer_end")[position])
    if max(end, outer[1]) - min(start, outer[0]) < max_lines:
        start, end = min(start, outer[0]), max(end, outer[1])
    if index.value("kind", position) == "section":
        return start, end
    before, after = _neighbours(index, position, start, end)
    while before or after:
        if after:
            low, high = own_lines(index, after.pop(0))
            end, after = (max(end, high), after) if max(end, high) - start < max_lines else (end, [])
        if before:
            low, high = own_lines(index, before.pop(0))
            start, before = (min(start, low), before) if end - min(start, low) < max_lines else (start, [])
    return start, end


def _neighbours(index: LexicalIndex, position: int, start: int, end: int) -> tuple[list[int], list[int]]:
    """Positions of the same file before and after these lines, nearest first."""
    # A path can have several versions, at consecutive positions. No two of them are in the same release.
    own = [index.column(name)[position] for name in ("path", "releases")]
    near = range(max(position - _REACH, 0), min(position + _REACH + 1, len(index)))
    inside = [p for p in near if index.column("path")[p] == own[0] and index.column("releases")[p] == own[1]]
    before = [p for p in reversed(inside) if index.column("end")[p] < start]
    after = [p for p in inside if index.column("start")[p] > end]
    return before, after


def own_lines(index: LexicalIndex, position: int) -> LineSpan:
    return int(index.column("start")[position]), int(index.column("end")[position])


def overlap(one: LineSpan, other: LineSpan) -> bool:
    return one[0] <= other[1] and other[0] <= one[1]


@dataclass(frozen=True)
class Excerpt:
    """A piece that is shown, the lines shown for it, and the pieces folded into it."""

    position: int
    lines: LineSpan
    twins: list[int]


class Selection:
    """Selects among the positions of one generation of the index."""

    def __init__(self, index: LexicalIndex, weights: SearchWeights) -> None:
        self._index = index
        self._weights = weights

    def choose(self, order: Sequence[int], count: int) -> list[Excerpt]:
        """The first hits are from distinct files, then come further hits from each. No lines are shown twice."""
        first = self._pick(order, min(count, self._weights.distinct), 1, ())
        taken = {position for excerpt in first for position in (excerpt.position, *excerpt.twins)}
        return self._pick([p for p in order if p not in taken], count, self._weights.per_file, first)

    def _pick(self, order: Sequence[int], count: int, per_file: int, chosen: Sequence[Excerpt]) -> list[Excerpt]:
        index, picked = self._index, list(chosen)
        for position in order:
            if len(picked) == count:
                break
            path = index.value("path", position)
            if twin := self._twin(position, picked):
                twin.twins.append(position)
                continue
            shown = [excerpt.lines for excerpt in picked if index.value("path", excerpt.position) == path]
            if len(shown) < per_file and not any(overlap(own_lines(index, position), lines) for lines in shown):
                picked.append(Excerpt(position, grow(index, position), []))
        return picked

    def _twin(self, position: int, picked: Sequence[Excerpt]) -> Excerpt | None:
        """The excerpt of a near-equal piece: a similar body under the same name, in another file or another version of it."""
        if self._weights.alike > 1 or not picked:
            return None
        index = self._index
        alike = likeness(index.signatures[[excerpt.position for excerpt in picked]], index.signatures[position])
        for place in np.flatnonzero(alike >= self._weights.alike).tolist():
            names = [index.value("symbol", p) for p in (picked[place].position, position)]
            if not self._of_one_file(picked[place].position, position) and same_name(names):
                return picked[place]
        return None

    def _of_one_file(self, one: int, other: int) -> bool:
        """Whether two pieces are of one file version. No two versions of a path are in the same release."""
        return all(self._index.column(name)[one] == self._index.column(name)[other] for name in ("path", "releases"))
