"""Padded M: when an entry of a larger M may serve a matrix product of the same N, K, layout and types.

The rule assumes that a kernel takes no longer for fewer rows, and that its rival's time falls at most in proportion to M. An
entry whose speedup outlasts that proportion is then faster for fewer rows, too. By how much it has to outlast it is data,
measured on a GPU on held-out shapes (`python -m benchmarks.library.neighbours judge`).

Covered: entries with a schedule, which their family writes anew for the product.
Not covered: larger M, for which half of the kernels were slower; an M below those that were measured; sources of another
kind, which may hold the sizes of their task as constants.
"""

from collections.abc import Sequence
from functools import cache
from pathlib import Path

from pydantic import Field

from cudal2_agent.contract.base import Record
from cudal2_agent.contract.records.library import LibraryEntry
from cudal2_agent.contract.records.task import ElementType, GemmTask, Layout

_FILE = Path(__file__).parent / "padded_m_rule.json"


class PaddedMRule(Record):
    """`measured`: the `Environment.key` under which the rule was measured, for `layouts` and `elements`.

    `least`: what `margin` must reach. `smallest`: of the product's M over that of the entry; below it nothing was measured.
    """

    measured: str
    layouts: tuple[Layout, ...]
    elements: tuple[ElementType, ...]
    least: float = Field(gt=0)
    smallest: float = Field(gt=0, lt=1)

    def allows(self, entry: LibraryEntry, task: GemmTask) -> bool:
        return (
            entry.schedule is not None
            and self.smallest <= task.m / entry.task.m < 1
            and entry.task.model_copy(update={"m": task.m}) == task
            and task.layout in self.layouts
            and task.element in self.elements
            and _margin_of(entry, task) >= self.least
        )

    def best_entry(self, entries: Sequence[LibraryEntry], task: GemmTask) -> LibraryEntry | None:
        """The allowed entry of the largest margin; None where there is none.

        The margin is the speedup that is certain by the rule. Of equal margins the nearest M is taken.
        """
        allowed = [entry for entry in entries if self.allows(entry, task)]
        return max(allowed, key=lambda entry: (_margin_of(entry, task), -entry.task.m), default=None)


def margin(low: float, m: int, entry_m: int) -> float:
    """What is left of the lower end of a speedup for fewer rows, where AutoTuning's time falls in proportion and ours stays."""
    return low * m / entry_m


def _margin_of(entry: LibraryEntry, task: GemmTask) -> float:
    return margin(entry.evaluation.speedup.low, task.m, entry.task.m)


@cache
def shipped_rule() -> PaddedMRule:
    return PaddedMRule.model_validate_json(_FILE.read_bytes())
