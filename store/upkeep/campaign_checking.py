"""Checks the tables of campaigns: records against their hashes, and columns against the records that they repeat.

Not covered: the state of the queue (status, worker, attempts), which no record repeats.
"""

from collections.abc import Callable, Iterator, Mapping
from typing import Any

from sqlalchemy import Connection, Row, Table, select

from cudal2_agent.contract.base import digest
from cudal2_agent.contract.records.baseline import TunedBaseline
from cudal2_agent.contract.records.campaign import ShapeResult
from cudal2_agent.contract.records.task import GemmTask
from cudal2_agent.store.campaigns.results import result_row
from cudal2_agent.store.campaigns.tuned import tuned_row
from cudal2_agent.store.packing import named
from cudal2_agent.store.tables import campaign_items, shape_results, tuned_baselines

Expected = Callable[[str], Mapping[str, Any]]


def campaign_faults(connection: Connection) -> Iterator[str]:
    """One line each."""
    yield from _faults(connection, shape_results, "result", lambda text: result_row(ShapeResult.model_validate_json(text)))
    yield from _faults(connection, tuned_baselines, "baseline", lambda text: tuned_row(TunedBaseline.model_validate_json(text)))
    yield from _faults(connection, campaign_items, "item", lambda text: {"task": GemmTask.model_validate_json(text).id})


def _faults(connection: Connection, table: Table, what: str, expected: Expected) -> Iterator[str]:
    for row in connection.execute(select(table).order_by(table.c.key)):
        if fault := _fault(row, expected):
            yield f"{what} {row.key}: {fault}"


def _fault(row: Row[Any], expected: Expected) -> str:
    held = row._mapping
    if "hash" in held and held["hash"] != named(digest(row.record)):
        return "its record does not have its hash"
    try:
        values = expected(row.record)
    except ValueError as exc:
        return f"it cannot be read: {str(exc).splitlines()[0]}"
    # A record of another version may be written in other words now; its hash says that it is whole.
    differing = [name for name, value in values.items() if name not in ("record", "hash") and held[name] != value]
    return f"its {differing[0]} is {held[differing[0]]!r}, its record says {values[differing[0]]!r}" if differing else ""
