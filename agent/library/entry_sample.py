"""A seeded sample of a library's entries, spread over kernel families and classes of time."""

import random
from collections import defaultdict
from collections.abc import Sequence

from cudal2_agent.contract.records.evaluation import AUTOTUNED
from cudal2_agent.contract.records.library import LibraryEntry, StoredAlgorithm

CLASSES_US = (4.0, 15.0, 60.0)  # bounds between classes of AutoTuning's time
NO_FAMILY = "source"
ALGORITHM = "algorithm"

Held = LibraryEntry | StoredAlgorithm


def sample_of(entries: Sequence[Held], count: int, seed: int) -> list[Held]:
    """`count` entries, or all where there are fewer: in turn one of each family and class, drawn by the seed."""
    draw, groups = random.Random(seed), defaultdict[tuple[str, int], list[Held]](list)
    for entry in sorted(entries, key=lambda one: one.id):
        groups[family_of(entry), time_class(entry)].append(entry)
    piles = [draw.sample(groups[name], len(groups[name])) for name in sorted(groups)]
    chosen: list[Held] = []
    while len(chosen) < count and any(piles):
        chosen += [pile.pop() for pile in piles if pile]
    return chosen[:count]


def family_of(entry: Held) -> str:
    if isinstance(entry, StoredAlgorithm):
        return ALGORITHM
    return str(entry.schedule.get("family")) if entry.schedule is not None else NO_FAMILY


def time_class(entry: Held) -> int:
    """0 to 3, by the bounds of `CLASSES_US`."""
    if isinstance(entry, StoredAlgorithm):
        return sum(entry.time_us >= bound for bound in CLASSES_US)
    autotuned_us = entry.evaluation.baselines_us.get(AUTOTUNED, entry.evaluation.time_us)
    return sum(autotuned_us >= bound for bound in CLASSES_US)
