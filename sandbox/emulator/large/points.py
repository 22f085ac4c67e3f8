"""Points of a grid: which clusters of it are run together, so that a tile is made whole; the places of D that they touch."""

import math
import random
from collections.abc import Collection, Iterator, Sequence
from dataclasses import dataclass, field

import numpy as np

from cudal2_agent.contract.plan.plan import ResolvedLaunch, TensorArg, TensorMapArg
from cudal2_agent.contract.records.task import GemmTask
from cudal2_agent.sandbox.emulator.large.coverage import Tile

WIDEST = 16  # splits of a tile


def clusters_along(launch: ResolvedLaunch) -> tuple[int, int, int]:
    x, y, z = (size // part for size, part in zip(launch.grid, launch.cluster, strict=True))
    return x, y, z


def first_cta(launch: ResolvedLaunch, cluster: int) -> int:
    """Linear index in the grid of the first CTA of a cluster, whose index is linear among clusters."""
    width, height, _ = clusters_along(launch)
    x, y, z = cluster % width, cluster // width % height, cluster // width // height
    x, y, z = (place * part for place, part in zip((x, y, z), launch.cluster, strict=True))
    return (z * launch.grid[1] + y) * launch.grid[0] + x


def with_splits(launch: ResolvedLaunch, cluster: int) -> tuple[int, ...]:
    """A cluster of the first layer with all clusters along z."""
    width, height, depth = clusters_along(launch)
    return tuple(cluster + z * height * width for z in range(depth))


def corners_first(launch: ResolvedLaunch, count: int, source: random.Random) -> list[tuple[int, ...]]:
    """Points of a grid, each with all clusters along z: its corners, its edges, then its interior, drawn from a seed."""
    width, height, _ = clusters_along(launch)
    right, bottom = width - 1, height - 1
    places = [(0, 0), (right, bottom), (right, 0), (0, bottom)]
    places += [(source.randint(0, right), 0), (right, source.randint(0, bottom))]
    places += [(source.randint(0, right), source.randint(0, bottom)) for _ in range(4 * count)]
    return [with_splits(launch, y * width + x) for x, y in list(dict.fromkeys(places))[:count]]


def widened(point: tuple[int, ...], clusters: int, width: int) -> Iterator[tuple[int, ...]]:
    """The point itself, unless a wider one was needed before; then with the splits of its tile: neighbours, or far apart."""
    if width <= len(point):
        yield point
    if len(point) > 1:
        return
    [cluster] = point
    for splits in range(max(width, 2), min(WIDEST, clusters) + 1):
        start = min(cluster // splits * splits, clusters - splits)
        yield tuple(range(start, start + splits))
        if clusters % splits == 0 and clusters > splits:
            stride = clusters // splits
            yield tuple(cluster % stride + stride * split for split in range(splits))


def last_to_write(launches: Sequence[ResolvedLaunch]) -> int:
    """The last launch that may write D."""
    writers = [
        index
        for index, launch in enumerate(launches)
        if any(
            arg == TensorArg(tensor="D", access="write") or (isinstance(arg, TensorMapArg) and arg.tensor_map.of == "D")
            for arg in launch.args
        )
    ]
    return writers[-1]


# The places of D that a sample is to touch, and guesses at the clusters that write them.
#
# Covered: grids that go over the tiles in rows, in columns, or in groups of either, with splits beside each other or far apart,
# and persistent clusters that take every n-th tile.
# Not covered: other orders. A wrong guess costs a run; the record names only what was compared.
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


@dataclass
class Tally:
    """What was run and compared. `width`: clusters that make a tile together, as far as they were needed.

    `clusters`, `work`: run with all detectors, the work in multiply-adds. `earlier`: clusters of launches before that one.
    `quickly`: whether the whole grid was run besides, without race detection. Shape: compared (M, N).
    """

    compared: np.ndarray
    clusters: set[int] = field(default_factory=set)
    earlier: dict[int, set[int]] = field(default_factory=dict)
    width: int = 1
    work: int = 0
    quickly: bool = False

    def summary(self, ran: str, entries: Sequence[str], places: Sequence[Place]) -> str:
        """In words. `ran`: which clusters; `entries`: of the plan's launches, in order."""
        ran += f", {self.width} at a time" if self.width > 1 else ""
        for index, clusters in self.earlier.items():
            ran += f", with {len(clusters)} of {entries[index]} before it"
        if self.compared.all():
            once = ", then the whole grid without race detection" if self.quickly else ""
            return f"{ran}{once}; all {self.compared.size} outputs compared"
        untouched = [place.name for place in places if not place.touched(self.compared)]
        reached = f"of D not touched: {', '.join(untouched)}" if untouched else "corners, edges and interior of D touched"
        compared = f"{np.count_nonzero(self.compared)} outputs compared of the {self.compared.size} there are"
        return f"{ran}; {compared}; {reached}"
