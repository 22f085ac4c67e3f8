"""The places of D that a sample is to touch, and guesses at the clusters that write them.

Covered: grids that go over the tiles in rows, in columns, or in groups of either, with splits beside each other or far apart,
and persistent clusters that take every n-th tile.
Not covered: other orders. A wrong guess costs a run; the record names only what was compared.
"""

import math
from collections.abc import Collection, Iterator
from dataclasses import dataclass

import numpy as np

from cudal2_agent.contract.records.task import GemmTask
from cudal2_agent.sandbox.emulator.large.coverage import Tile

_GROUPS = (1, 2, 4, 8, 16, 32)


@dataclass(frozen=True)
class Place:
    """A corner of D, an edge at least a tile away from its corners, or the interior."""

    name: str
    rows: range
    columns: range

    def touched(self, compared: np.ndarray) -> bool:
        """Shape: compared (M, N)."""
        part = compared[self.rows.start : self.rows.stop, self.columns.start : self.columns.stop]
        return bool(part.any())


def places_of(task: GemmTask, tile: Tile) -> tuple[Place, ...]:
    """Corners first. A size of two tiles or fewer has nothing between its ends."""
    rows = {"top": range(1), "bottom": range(task.m - 1, task.m), "": range(tile.rows, task.m - tile.rows)}
    columns = {"left": range(1), "right": range(task.n - 1, task.n), "": range(tile.columns, task.n - tile.columns)}
    return tuple(
        Place(f"{vertical} {horizontal}".strip() or "interior", down, across)
        for vertical, down in rows.items()
        for horizontal, across in columns.items()
        if down and across
    )


@dataclass(frozen=True)
class Raster:
    """A guess at the order of tiles: `group` lines of them at a time, across the group first. Shape: tiles (rows, columns).

    `by_rows`: whether lines are rows. `splits`: clusters beside each other that make one tile.
    """

    tiles: tuple[int, int]
    clusters: int
    group: int
    by_rows: bool
    splits: int

    def cluster(self, row: int, column: int) -> int:
        """The first cluster of a tile."""
        line, place = (row, column) if self.by_rows else (column, row)
        lines, length = self.tiles if self.by_rows else self.tiles[::-1]
        first = line // self.group * self.group
        index = first * length + place * min(lines - first, self.group) + line - first
        return index * self.splits % self.clusters

    def agrees(self, tiles: Collection[tuple[int, int]], clusters: Collection[int]) -> bool:
        """Whether the guess maps these clusters to these tiles."""
        return all(self.cluster(row, column) in clusters for row, column in tiles)


def rasters(task: GemmTask, tile: Tile, clusters: int) -> Iterator[Raster]:
    """All guesses for a grid of that number of clusters."""
    tiles = math.ceil(task.m / tile.rows), math.ceil(task.n / tile.columns)
    for splits in {1, max(1, clusters // (tiles[0] * tiles[1]))}:
        for group in _GROUPS:
            for by_rows in (True, False):
                yield Raster(tiles, clusters, group, by_rows, splits)
