"""Which of the ranked pieces are shown: of several files first, twins folded into one, nothing twice."""

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from knowledge.lexical.lexical_index import Lexical
from knowledge.lexical.signatures import likeness, same_name
from knowledge.search.excerpts import Lines, grow, overlap, own_lines
from knowledge.search.weights import SearchWeights


@dataclass(frozen=True)
class Choice:
    """A piece to be shown, its lines with its surroundings, and the pieces folded into it."""

    position: int
    lines: Lines
    twins: list[int]


class Selection:
    """Chooses among positions of one generation of the index."""

    def __init__(self, index: Lexical, weights: SearchWeights) -> None:
        self._index = index
        self._weights = weights

    def choose(self, order: Sequence[int], count: int) -> list[Choice]:
        """The first hits are of as many files, then come more of each; pieces that are shown already are left out."""
        first = self._pick(order, min(count, self._weights.distinct), 1, ())
        taken = {position for choice in first for position in (choice.position, *choice.twins)}
        return self._pick([p for p in order if p not in taken], count, self._weights.per_file, first)

    def _pick(self, order: Sequence[int], count: int, per_file: int, chosen: Sequence[Choice]) -> list[Choice]:
        index, picked = self._index, list(chosen)
        for position in order:
            if len(picked) == count:
                break
            path = index.value("path", position)
            if twin := self._twin(position, picked):
                twin.twins.append(position)
                continue
            shown = [choice.lines for choice in picked if index.value("path", choice.position) == path]
            if len(shown) < per_file and not any(overlap(own_lines(index, position), lines) for lines in shown):
                picked.append(Choice(position, grow(index, position), []))
        return picked

    def _twin(self, position: int, picked: Sequence[Choice]) -> Choice | None:
        """The choice that shows nearly the same: a like body under the same name, in another file or another version of it."""
        if self._weights.alike > 1 or not picked:
            return None
        index = self._index
        alike = likeness(index.signatures[[choice.position for choice in picked]], index.signatures[position])
        for place in np.flatnonzero(alike >= self._weights.alike).tolist():
            names = [index.value("symbol", p) for p in (picked[place].position, position)]
            if not self._of_one_file(picked[place].position, position) and same_name(names):
                return picked[place]
        return None

    def _of_one_file(self, one: int, other: int) -> bool:
        """Whether two pieces are of one file version; no two versions of a path are in the same release."""
        return all(self._index.column(name)[one] == self._index.column(name)[other] for name in ("path", "releases"))
