"""Locates the definitions that the glossary names in one generation of the index."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from cudal2_agent.knowledge.glossary.glossary import Glossary
from cudal2_agent.knowledge.lexical.symbols import SymbolPositions

_FILE = "anchors.npz"
_RANK_FACTOR = 0.85  # weight of a name in a concept's code, relative to the name before it


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
    places = SymbolPositions(symbols, paths, holding)
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
