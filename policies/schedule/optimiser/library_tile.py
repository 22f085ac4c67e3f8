"""Schedules with the tile of the library's own best kernel, which AutoTuning has timed for the same task."""

import re

from cudal2_agent.contract.records.evaluation import AUTOTUNED, Evaluation, Measured
from cudal2_agent.contract.reward.speedup import baseline_of
from cudal2_agent.policies.schedule.optimiser.pool_entry import PoolEntry
from cudal2_agent.policies.schedule.optimiser.schedule_pool import SchedulePool

_TILE = re.compile(r"\btile tile_(\d+)x(\d+)")


def library_tile(evaluation: Evaluation | None) -> tuple[int, int] | None:
    """Rows and columns of D in a tile of AutoTuning's best algorithm, as a baseline's detail says; None where none does.

    cuBLASLt computes the transposed D of a row-major product, so its first size is along N.
    """
    timing = baseline_of(evaluation, AUTOTUNED) if isinstance(evaluation, Measured) else None
    found = _TILE.search(timing.detail) if timing is not None else None
    return (int(found[2]), int(found[1])) if found is not None else None


def with_tile(pool: SchedulePool, tile: tuple[int, int], tried: list[PoolEntry], count: int) -> list[PoolEntry]:
    """The `count` schedules with that tile of D which the prior expects to be fastest, of unlike clusters and parts of K.

    None where one was tried.
    """
    if any(entry.work.tile[:2] == tile for entry in tried):
        return []
    named: dict[object, PoolEntry] = {}
    for place in pool.predicted_us.argsort(kind="stable"):
        entry = pool.entries[int(place)]
        if entry.work.tile[:2] == tile:
            named.setdefault((entry.group, entry.values.get("cluster_m"), entry.values.get("cluster_n")), entry)
        if len(named) == count:
            break
    return list(named.values())
