"""Shapes off the grid that schedule policies learn from, of the kinds that the held-out ones are of. None of those is drawn.

Run from the repository's root:
    python -m benchmarks.proposals.training_shapes [--kind layer | --hard] [--count N] [--seed N] > FILE
The file is for `cudal2-agent campaign run --shapes`.
"""

import argparse
import math
import random
from collections.abc import Callable, Sequence

from benchmarks.h200.grid import SIZES, held_out

SEED, COUNT = 2017, 250
MIN_WORK, MAX_WORK = 10**5, 2.2 * 10**11  # multiply-adds: what a search measures in seconds
MAX_ELEMENTS = 2**28  # of an operand


def sized(rng: random.Random, low: int, high: int, multiple: int) -> int:
    """Log-uniform, a multiple."""
    drawn = math.exp(rng.uniform(math.log(low), math.log(high)))
    return max(multiple, round(drawn / multiple) * multiple)


def one_long(rng: random.Random) -> tuple[int, int, int]:
    """Two short sides and one long one: tall, flat or deep."""
    sides = [sized(rng, 16, 512, rng.choice((8, 16, 64))) for _ in range(2)]
    sides.insert(rng.randrange(3), sized(rng, 4096, 262144, rng.choice((8, 256, 4096))))
    return sides[0], sides[1], sides[2]


def odd(rng: random.Random) -> tuple[int, int, int]:
    """Small to middle sizes, M any number; rows of A, B and D are whole multiples of 16 bytes."""
    m = sized(rng, 24, 4200, rng.choice((1, 8)))
    return m, sized(rng, 40, 8400, 8), sized(rng, 40, 8400, 8)


def near_grid(rng: random.Random) -> tuple[int, int, int]:
    """Sizes of the grid, each up to 2 % off or a half more."""
    m, n, k = (max(8, round(rng.choice(SIZES[:8]) * rng.choice((rng.uniform(0.98, 1.02), 1.5, 1.0)) / 8) * 8) for _ in range(3))
    return m, n, k


def layer(rng: random.Random) -> tuple[int, int, int]:
    """A layer of a language model, for one token to some thousand."""
    m = rng.choice((rng.randrange(1, 65), sized(rng, 40, 800, 8), sized(rng, 512, 8192, 64)))
    return m, sized(rng, 512, 28672, rng.choice((64, 128, 256))), sized(rng, 384, 20480, rng.choice((64, 128, 256)))


def few_rows(rng: random.Random) -> tuple[int, int, int]:
    """A layer for at most 64 tokens, some with sizes that no tile divides."""
    multiple = rng.choice((8, 64, 256))
    return rng.randrange(1, 65), sized(rng, 512, 32768, multiple), sized(rng, 512, 16384, multiple)


def short_k(rng: random.Random) -> tuple[int, int, int]:
    """A tall or flat output of one to eight waves of tiles, and at most eight steps of K."""
    m, n = sized(rng, 64, 2048, rng.choice((8, 64))), sized(rng, 4096, 131072, rng.choice((8, 64, 256)))
    k = sized(rng, 64, 512, rng.choice((8, 64)))
    return (m, n, k) if rng.random() < 0.5 else (n, m, k)


def deep(rng: random.Random) -> tuple[int, int, int]:
    """A small output, and K long enough to be split."""
    return sized(rng, 24, 640, 8), sized(rng, 24, 4096, 8), sized(rng, 3072, 32768, 8)


Kind = Callable[[random.Random], tuple[int, int, int]]
KINDS: tuple[Kind, ...] = (one_long, odd, near_grid, layer)
HARD: tuple[Kind, ...] = (few_rows, short_k, deep, odd)  # where the third policy's proposals fell short


def drawn(count: int = COUNT, seed: int = SEED, kinds: Sequence[Kind] = KINDS) -> list[str]:
    """As M x N x K; kinds in turn, so that the first ones are of all kinds."""
    rng, apart = random.Random(seed), held_out()
    found: list[str] = []
    while len(found) < count:
        m, n, k = kinds[len(found) % len(kinds)](rng)
        shape = f"{m}x{n}x{k}"
        fits = MIN_WORK <= m * n * k <= MAX_WORK and max(m * k, k * n, m * n) <= MAX_ELEMENTS
        if fits and not {m, n, k} <= set(SIZES) and shape not in apart and shape not in found:
            found.append(shape)
    return found


def main() -> None:
    named = {kind.__name__: kind for kind in (*KINDS, *HARD)}
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    wanted = parser.add_mutually_exclusive_group()
    wanted.add_argument("--kind", action="append", choices=named, help="may be repeated; default: the first four")
    wanted.add_argument("--hard", action="store_true", help="the kinds where proposals fell short instead")
    parser.add_argument("--count", type=int, default=COUNT)
    parser.add_argument("--seed", type=int, default=SEED)
    options = parser.parse_args()
    kinds = [named[name] for name in options.kind] if options.kind else HARD if options.hard else KINDS
    print("\n".join(drawn(options.count, options.seed, kinds)))


if __name__ == "__main__":
    main()
