"""Locates the definitions that the glossary names in one generation of the index."""

import re
from collections import defaultdict
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import lru_cache
from pathlib import Path, PurePosixPath

import numpy as np
from numpy.typing import NDArray

from cudal2_agent.knowledge.glossary.glossary import Glossary

_FILE = "anchors.npz"
_MAX_POSITIONS = 400  # a name in more positions carries no information
_RANK_FACTOR = 0.85  # weight of a name in a concept's code, relative to the name before it
_RARE = 12  # a word in more pieces than this locates none of them
_FILE_WEIGHT = 0.5  # weight of a whole file, relative to the definition itself
_MENTION_WEIGHT = 0.7  # weight of a piece of the class that mentions the member, if no piece is named after the member
_TEMPLATE_ARGUMENTS = re.compile(r"<[^<>]*>")


@dataclass(frozen=True)
class Anchors:
    """The positions of all concepts: concept c has `positions[bounds[c]:bounds[c + 1]]`, each with a weight up to 1."""

    digest: str
    bounds: NDArray[np.int32]
    positions: NDArray[np.int32]
    weights: NDArray[np.float32]

    def of(self, concept: int) -> tuple[NDArray[np.int32], NDArray[np.float32]]:
        span = slice(int(self.bounds[concept]), int(self.bounds[concept + 1]))
        return self.positions[span], self.weights[span]

    @property
    def placed(self) -> int:
        """The number of concepts with at least one position."""
        return int((np.diff(self.bounds) > 0).sum())

    def save(self, folder: Path) -> None:
        np.savez(folder / _FILE, digest=self.digest, bounds=self.bounds, positions=self.positions, weights=self.weights)

    @classmethod
    def load(cls, folder: Path) -> "Anchors":
        """Raises: OSError, ValueError, KeyError, EOFError, BadZipFile."""
        with np.load(folder / _FILE) as data:
            return cls(str(data["digest"]), data["bounds"], data["positions"], data["weights"])


def find_anchors(
    glossary: Glossary, symbols: Sequence[str], paths: Sequence[str], holding: Callable[[str], NDArray[np.int32]]
) -> Anchors:
    """Locate the glossary's symbols. `symbols`, `paths`: of every position. `holding`: positions whose body has a word."""
    places = _SymbolPositions(symbols, paths, holding)
    bounds, positions, weights = [0], [np.zeros(0, np.int32)], [np.zeros(0, np.float32)]
    for concept in glossary.concepts:
        best: dict[int, float] = {}
        for rank, name in enumerate(concept.code):
            found, weight = places.find(name)
            # A name with many positions weighs less in each of them.
            share = weight * _RANK_FACTOR**rank / (1 + np.log(len(found)) / 3) if found else 0.0
            for position in found:
                best[position] = max(best.get(position, 0.0), share)
        positions.append(np.fromiter(best, np.int32, len(best)))
        weights.append(np.fromiter(best.values(), np.float32, len(best)))
        bounds.append(bounds[-1] + len(best))
    return Anchors(glossary.digest, np.array(bounds, np.int32), np.concatenate(positions), np.concatenate(weights))


class _SymbolPositions:
    """Finds positions by a part of their symbol, by the stem of their file, or by a word of their body."""

    def __init__(self, symbols: Sequence[str], paths: Sequence[str], holding: Callable[[str], NDArray[np.int32]]) -> None:
        self._parts = [_parts(symbol) for symbol in symbols]
        self._holding = holding
        self._by_part: dict[str, list[int]] = defaultdict(list)
        self._by_stem: dict[str, list[int]] = defaultdict(list)
        for position, (parts, path) in enumerate(zip(self._parts, paths, strict=True)):
            for part in set(parts):
                self._by_part[part].append(position)
            self._by_stem[_stem(path)].append(position)

    def find(self, name: str) -> tuple[list[int], float]:
        """Positions and their weight: definitions with that name, else files with it, else pieces that mention it."""
        wanted = _parts(name)
        if not wanted:
            return [], 0.0
        last = wanted[-1]
        exact = [p for p in self._by_part.get(last, ()) if self._parts[p][-len(wanted) :] == wanted]
        if exact:
            return exact[:_MAX_POSITIONS], 1.0
        if found := self._by_stem.get(_stem(name)):
            return found[:_MAX_POSITIONS], _FILE_WEIGHT
        inside = self._by_part.get(wanted[-2] if len(wanted) > 1 else last, [])
        mentions = self._holding(last).tolist()
        if len(wanted) > 1:
            inside = sorted(set(inside).intersection(mentions))
        return (inside or mentions[: _RARE if len(mentions) <= _RARE else 0])[:_MAX_POSITIONS], _MENTION_WEIGHT


def _stem(path: str) -> str:
    return PurePosixPath(path).name.split(".", 1)[0].lower()


@lru_cache(maxsize=1 << 16)
def _parts(symbol: str) -> tuple[str, ...]:
    """The lower-case parts of a symbol: ("a", "b", "d") for `a::B<C>::d`."""
    previous = ""
    while previous != symbol:
        previous, symbol = symbol, _TEMPLATE_ARGUMENTS.sub("", symbol)
    return tuple(part.strip() for part in symbol.lower().split("::") if part.strip())
