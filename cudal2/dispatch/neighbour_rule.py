"""When an entry of a neighbouring shape may serve a product: same N, K, layout and types, another M.

Only entries with a schedule qualify: its family writes the source anew for the other M. A source of another kind may hold the
sizes of its task as constants, so it is never used for another shape. Which distances are allowed is data, measured on a GPU on
held-out shapes. `neighbours.json` has no rows until then, so the rule is off.
"""

from collections.abc import Sequence
from functools import cache
from pathlib import Path

from pydantic import Field

from contract.base import Record
from contract.library import LibraryEntry
from contract.task import GemmTask, Layout

_FILE = Path(__file__).parent / "neighbours.json"


class AllowedDistance(Record):
    """M of the product over M of the entry may be `low` to `high`, for an M of the entry from `min_m` to `max_m`."""

    layout: Layout
    min_m: int = Field(gt=0)
    max_m: int = Field(gt=0)
    low: float = Field(gt=0)
    high: float = Field(gt=0)

    def holds(self, entry: GemmTask, task: GemmTask) -> bool:
        return (
            entry.layout is self.layout
            and self.min_m <= entry.m <= self.max_m
            and self.low <= task.m / entry.m <= self.high
            and entry.model_copy(update={"m": task.m}) == task
        )


class NeighbourTable(Record):
    """`measured`: the `Environment.key` under which the distances were measured; empty where none were."""

    measured: str = ""
    allowed: tuple[AllowedDistance, ...] = ()

    def nearest(self, entries: Sequence[LibraryEntry], task: GemmTask) -> LibraryEntry | None:
        """The allowed entry whose M is nearest by ratio; None where there is none."""
        fitting = [
            entry
            for entry in entries
            if entry.schedule is not None and any(distance.holds(entry.task, task) for distance in self.allowed)
        ]
        if not fitting:
            return None
        return min(fitting, key=lambda entry: (max(entry.task.m / task.m, task.m / entry.task.m), entry.task.m))


@cache
def shipped_neighbours() -> NeighbourTable:
    return NeighbourTable.model_validate_json(_FILE.read_bytes())
