"""Schedules with the tile of the library's own best kernel, which AutoTuning has timed for the same task."""

import re
from collections.abc import Iterator, Sequence

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


def with_tile(pool: SchedulePool, tile: tuple[int, int], tried: Sequence[PoolEntry]) -> Iterator[PoolEntry]:
    """Schedules with that tile of D, of unlike clusters and parts of K, fastest expected first. None where one was tried."""
    if any(entry.work.tile[:2] == tile for entry in tried):
        return
    seen = set[object]()
    for place in pool.predicted_us.argsort(kind="stable"):
        entry = pool.entries[int(place)]
        form = (entry.group, entry.values.get("cluster_m"), entry.values.get("cluster_n"))
        if entry.work.tile[:2] == tile and form not in seen:
            seen.add(form)
            yield entry
