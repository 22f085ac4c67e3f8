"""The shapes of the comparison: a random sample of the grid without the held-out ones, in a random order.

A run that ends early has timed a random sample too.
"""

import random

from benchmarks.speed.grid import grid_shapes, held_out
from cudal2_agent.contract.errors import UsageError
from cudal2_agent.contract.records.task import parse_shape

COUNT = 40
SEED = 16


def default_shapes() -> list[str]:
    return random.Random(SEED).sample([shape for shape in grid_shapes() if shape not in held_out()], COUNT)


def chosen_shapes(names: list[str]) -> list[str]:
    """The named shapes, or the default ones. Raises: UsageError for more than 40, and for one that is held out."""
    shapes = ["x".join(map(str, parse_shape(name))) for name in names] or default_shapes()
    if len(shapes) > COUNT:
        raise UsageError(f"{len(shapes)} shapes are too many for one run; name at most {COUNT}")
    if apart := [shape for shape in shapes if shape in held_out()]:
        raise UsageError(f"{', '.join(apart)}: held out of every tuning, so peers are not searched on it; name other shapes")
    return shapes
