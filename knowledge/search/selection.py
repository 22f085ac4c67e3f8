"""Selects the pieces that are shown: distinct files first, near-equal pieces folded into one, no overlap."""

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from cudal2_agent.knowledge.lexical.lexical_index import LexicalIndex
from cudal2_agent.knowledge.lexical.signatures import likeness, same_name
from cudal2_agent.knowledge.search.excerpts import LineSpan, grow, overlap, own_lines
from cudal2_agent.knowledge.search.weights import SearchWeights


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
