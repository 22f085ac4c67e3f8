"""Which rows of a campaign count, where a shape was measured on several days."""

from collections.abc import Iterable

from cudal2_agent.agent.campaign.result_files import place
from cudal2_agent.contract.errors import UsageError
from cudal2_agent.contract.records.campaign import ShapeResult


def counting(rows: Iterable[ShapeResult], environment: str | None = None) -> list[ShapeResult]:
    """One row per task, of one environment: the newest that has a kernel, else the newest.

    The largest speedup of several days would be a maximum over noise, so the newest measurement counts, faster or not.
    `environment`: needed where the rows come from several. Raises: UsageError.
    """
    rows = list(rows)
    known = sorted({row.environment for row in rows if row.environment})
    if environment is None and len(known) > 1:
        raise UsageError(f"the rows come from {len(known)} environments; name one of them: {'; '.join(known)}")
    if environment is not None and environment not in known:
        raise UsageError(f"no row comes from environment {environment!r}; there are: {'; '.join(known) or 'none'}")
    chosen: dict[str, ShapeResult] = {}
    for row in sorted(rows, key=_standing):
        if row.environment in (None, environment or next(iter(known), None)):
            chosen[row.task.id] = row
    return sorted(chosen.values(), key=place)


def _standing(row: ShapeResult) -> tuple[object, ...]:
    """Of several rows of a task the last in this order counts. The same row may be told before and after its proof."""
    return row.best is not None, row.finished_at, row.explained is not None, bool(row.witness)
