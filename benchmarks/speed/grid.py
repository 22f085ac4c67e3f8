"""The shapes of the CUDA-L2 paper, and the shapes that no prior, space or search is tuned on.

`python -m benchmarks.speed.grid` prints the held-out shapes, and with `tn` or `nt` the shapes of the grid that are measured
in that layout, with `off_grid` the held-out shapes off the grid.
`benchmarks/campaigns/held_out.json` was drawn before the first tuning.
"""

import json
import random
import sys
from collections.abc import Sequence
from itertools import product
from pathlib import Path

CAMPAIGNS = Path(__file__).parents[1] / "campaigns"
HELD_OUT = CAMPAIGNS / "held_out.json"
SIZES = (64, 128, 256, 512, 1024, 2048, 4096, 8192, 12288, 16384)
SEED = 15
SHARE = 10  # one of so many shapes of the grid is held out
OF_A_LAYOUT = 150  # shapes of the grid that are measured in layouts other than nn

# Layer sizes of language models (tokens x outputs x inputs), odd sizes, tall and skinny ones.
OFF_GRID = (
    *("1x4096x4096", "1x14336x4096", "2x4096x14336", "4x6144x4096", "8x8192x8192", "8x28672x8192", "16x3584x18944"),
    *("16x4608x3584", "24x7168x2048", "32x4096x14336", "32x6144x4096", "40x2304x768", "48x10240x8192", "96x768x3072"),
    *("100x5120x5120", "128x37888x3584", "160x2560x9216", "192x18432x7168", "200x3072x768", "256x14336x4096"),
    *("300x2304x9216", "320x5120x13824", "384x1536x7168", "512x14336x4096", "640x4096x14336", "768x24576x1536"),
    *("1000x1000x1000", "1536x8960x1536", "1920x6144x4096", "2048x3584x3584", "2048x28672x8192", "3072x3072x12288"),
    *("4096x14336x4096", "4096x50304x768", "8192x5120x13824", "777x336x552", "1111x1112x1112", "1023x1024x1032"),
    *("4095x4096x4104", "100x200x304", "33x520x2056", "72x4104x136", "136x72x8200", "1025x2056x520"),
    *("16384x16x256", "65536x64x64", "32768x128x512", "64x32768x128", "48x48x32768", "131072x256x64"),
)


def grid_shapes() -> list[str]:
    """All 1,000 shapes, as M x N x K."""
    return [f"{m}x{n}x{k}" for m, n, k in product(SIZES, repeat=3)]


def draw_held_out(measured_before: Sequence[str]) -> list[str]:
    """A tenth of the grid at random, among the shapes that no earlier search had measured."""
    known = set(measured_before)
    unseen = [shape for shape in grid_shapes() if shape not in known]
    return sorted(random.Random(SEED).sample(unseen, len(SIZES) ** 3 // SHARE), key=_sizes)


def held_out() -> frozenset[str]:
    """The held-out shapes of the grid and off it."""
    return _drawn("grid", "off_grid")


def apart() -> frozenset[str]:
    """The held-out shapes, and those that were measured before they were drawn."""
    return _drawn("measured_before", "grid", "off_grid")


def _drawn(*lists: str) -> frozenset[str]:
    drawn = json.loads(HELD_OUT.read_text(encoding="utf-8"))
    return frozenset(shape for name in lists for shape in drawn[name])


def shapes_in(layout: str) -> list[str]:
    """The shapes of the grid that are measured in a layout other than nn, in random order: any beginning is a sample."""
    return random.Random(f"{SEED} {layout}").sample(grid_shapes(), OF_A_LAYOUT)


def _sizes(shape: str) -> tuple[int, ...]:
    return tuple(int(size) for size in shape.split("x"))


if __name__ == "__main__":
    wanted = sys.argv[1:]
    found = [shape for name in wanted for shape in (OFF_GRID if name == "off_grid" else shapes_in(name))]
    print("\n".join(found if wanted else sorted(held_out(), key=_sizes)))
