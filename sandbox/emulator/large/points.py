"""Points of a grid: which clusters of it are run together, so that a tile is made whole."""

import random
from collections.abc import Iterator, Sequence

from cudal2_agent.contract.plan.plan import ResolvedLaunch, TensorArg, TensorMapArg

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
