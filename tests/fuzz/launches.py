"""Mutations of launches: grids, blocks, clusters, shared memory and parameters."""

import random
from dataclasses import replace

from tests.fuzz.seed import Argument, Launch, MapOf, Pointer


def mutate_launch(launch: Launch, rng: random.Random) -> Launch:
    """A launch with another grid, block, cluster, shared memory size, or parameter."""
    match rng.randrange(6):
        case 0:
            cluster = rng.choice(((1, 1, 1), (2, 1, 1), (1, 2, 1), (4, 1, 1), (2, 2, 2), (16, 1, 1), (3, 1, 1)))
            return replace(launch, cluster=cluster, grid=_multiple(launch.grid, cluster))
        case 1:
            return replace(launch, grid=_multiple(tuple(rng.choice((1, 1, 2, 3)) for _ in range(3)), launch.cluster))
        case 2:
            blocks = ((1, 1, 1), (31, 1, 1), (33, 1, 1), (64, 2, 1), (7, 5, 3), (1024, 1, 1), (128, 1, 1), (1, 1, 64))
            return replace(launch, block=rng.choice(blocks))
        case 3:
            sizes = (0, 1, 15, 16, 128, 1000, 16384, launch.dynamic_smem // 2, max(launch.dynamic_smem - 16, 0), 200_000, 2**20)
            return replace(launch, dynamic_smem=rng.choice(sizes))
        case 4:
            noise = tuple(
                (rng.randrange(4096), rng.choice((0, 1, 127, 128, 255, rng.randrange(256)))) for _ in range(rng.randint(1, 3))
            )
            return replace(launch, noise=noise)
        case _:
            return replace(
                launch, arguments=tuple(_other(each, rng) for each in launch.arguments), dependent=rng.random() < 0.5
            )


def _multiple(grid: tuple[int, ...], cluster: tuple[int, int, int]) -> tuple[int, int, int]:
    x, y, z = (-(-size // by) * by for size, by in zip(grid, cluster, strict=True))
    return x, y, z


def _other(argument: Argument, rng: random.Random) -> Argument:
    match argument:
        case Pointer() if rng.random() < 0.3:
            return replace(argument, offset=rng.choice((0, 1, 2, 8, 16, 100, -16, 2**20, -(2**40))))
        case MapOf(place=place, tensor=tensor) if rng.random() < 0.7:
            match rng.randrange(5):
                case 0:
                    tensor = replace(tensor, swizzle=rng.choice((0, 32, 64, 128)))
                case 1:
                    tensor = replace(tensor, box=tuple(rng.choice((1, 2, 8, 32, 64, size)) for size in tensor.box))
                case 2:
                    tensor = replace(tensor, sizes=tuple(rng.choice((size, 1, 3, 2**32)) for size in tensor.sizes))
                case 3:
                    tensor = replace(tensor, strides=tuple(rng.choice((each, 16, 0, 2**39)) for each in tensor.strides))
                case _:
                    place = replace(place, offset=rng.choice((0, 16, 64, -16, 1)))
            return MapOf(place, tensor)
    return argument
