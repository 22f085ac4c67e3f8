"""Which clusters of earlier launches write what some clusters of a later one read, so that a plan of several is sampled.

Covered: launches whose clusters write places that shift with their coordinates in the grid, such as partial sums by split, row
and column; and grids of few clusters, whatever they write. A few clusters of each are run alone, and what they write is noted.
Not covered: other orders of large grids, such as tiles in groups, and persistent clusters with several tiles each.
"""

from collections.abc import Callable, Mapping, Sequence

import numpy as np

from cudal2_agent.contract.plan.plan import ResolvedLaunch
from cudal2_agent.sandbox.emulator.large.points import clusters_along

Ranges = Mapping[str, Sequence[tuple[int, int]]]  # bytes of buffers, by their names
Missing = Mapping[str, np.ndarray]  # places in buffers, in pieces of `PIECE_BYTES`
PIECE_BYTES = 2
FEW_CLUSTERS = 32  # a grid of as many is tried out cluster by cluster
MAX_WRITERS = 512
MAX_PIECES = 2**22


class TooMany(Exception):
    """More clusters or bytes than are considered."""


def pieces(ranges: Ranges) -> dict[str, np.ndarray]:
    """The places that ranges hold, in order. Raises: TooMany."""
    if sum(end - start for spans in ranges.values() for start, end in spans) > PIECE_BYTES * MAX_PIECES:
        raise TooMany
    return {
        name: np.concatenate([np.arange(start, end, PIECE_BYTES) for start, end in spans])
        for name, spans in ranges.items()
        if spans
    }


class Footprint:
    """What one cluster writes of one buffer, and how that shifts along the grid. Shape: starts, ends (ranges,)."""

    def __init__(self, spans: Sequence[tuple[int, int]], shifts: Sequence[int]) -> None:
        self._starts, self._ends = (np.array(each, dtype=np.int64) for each in zip(*spans, strict=True))
        self._shifts = shifts

    def holds(self, places: np.ndarray) -> np.ndarray:
        """Which places lie in what the cluster at the grid's origin writes."""
        at = np.searchsorted(self._starts, places, side="right") - 1
        return (at >= 0) & (places < self._ends[at])

    def base(self, along: tuple[int, int, int]) -> np.ndarray:
        """The offset of what each cluster writes from what the first writes. Shape: (clusters,), in linear order."""
        z, y, x = np.meshgrid(*(np.arange(size, dtype=np.int64) for size in reversed(along)), indexing="ij")
        return np.asarray((x * self._shifts[0] + y * self._shifts[1] + z * self._shifts[2]).reshape(-1))


class Writers:
    """The clusters of one launch by what they write. `probe`: runs one cluster alone; what it wrote."""

    def __init__(self, launch: ResolvedLaunch, probe: Callable[[int], Ranges]) -> None:
        self._along, self._probe = clusters_along(launch), probe
        self._count = int(np.prod(self._along))
        self._probed: dict[int, Ranges] = {}
        self._footprints: dict[str, Footprint | None] = {}

    def of(self, missing: Missing) -> tuple[set[int], dict[str, np.ndarray]]:
        """Clusters that write missing places, and the places that none of them does. Raises: TooMany."""
        found: set[int] = set()
        left = {}
        for name, places in missing.items():
            more, rest = self._tried_out(name, places) if self._count <= FEW_CLUSTERS else self._predicted(name, places)
            found |= more
            if len(rest):
                left[name] = rest
        return found, left

    def _tried_out(self, name: str, places: np.ndarray) -> tuple[set[int], np.ndarray]:
        """By running every cluster once."""
        found: set[int] = set()
        left = np.ones(len(places), dtype=bool)
        for cluster in range(self._count):
            if spans := self._written(cluster).get(name):
                held = Footprint(spans, (0, 0, 0)).holds(places)
                left &= ~held
                found |= {cluster} if held.any() else set()
        return found, places[left]

    def _predicted(self, name: str, places: np.ndarray) -> tuple[set[int], np.ndarray]:
        """Predicted from the shift of what the first cluster writes."""
        footprint = self._footprint(name)
        if footprint is None:
            return set(), places
        base, found = footprint.base(self._along), set[int]()
        unknown: list[int] = []
        while len(places):
            writers = np.flatnonzero(footprint.holds(places[0] - base))
            if not len(writers):
                unknown.append(int(places[0]))
                places = places[1:]
            for writer in writers:
                places = places[~footprint.holds(places - base[writer])]
            found |= set(writers.tolist())
            if len(found) > MAX_WRITERS or len(unknown) > MAX_WRITERS:
                raise TooMany
        return found, np.array(unknown, dtype=np.int64)

    def _footprint(self, name: str) -> Footprint | None:
        """None if the first cluster writes nothing of a buffer, or the last one not where the shift predicts."""
        if name not in self._footprints:
            self._footprints[name] = self._shifting(name)
        return self._footprints[name]

    def _shifting(self, name: str) -> Footprint | None:
        width, height, _ = self._along
        first = self._written(0).get(name)
        if not first:
            return None
        shifts = []
        for step, size in zip((1, width, width * height), self._along, strict=True):
            spans = self._written(step).get(name) if size > 1 else first
            if not spans:
                return None
            shifts.append(spans[0][0] - first[0][0])
        footprint = Footprint(first, shifts)
        last = self._written(self._count - 1).get(name)
        predicted = footprint.base(self._along)[-1]
        return footprint if last and last[0][0] == first[0][0] + predicted else None

    def _written(self, cluster: int) -> Ranges:
        if cluster not in self._probed:
            self._probed[cluster] = self._probe(cluster)
        return self._probed[cluster]
