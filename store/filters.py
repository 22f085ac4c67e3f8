"""Which steps of the store a command or an export takes."""

from collections.abc import Sequence
from datetime import UTC, datetime
from typing import Any

from sqlalchemy import ColumnElement, and_, select, true

from cudal2_agent.contract.base import Record
from cudal2_agent.store import tables


class StepFilter(Record):
    """Conditions on runs and steps. All that are given hold at once; one of several values is enough. Empty selects all.

    `runs`: run ids. `shapes`: MxNxK. `chips`: names as in `Chip.name`. `outcomes`: values of `Evaluation.status`.
    `environments`: values of `Environment.key`. `cutlass`: releases that the runs could retrieve from.
    `min_speedup`, `max_speedup`: over cuBLASLt-AutoTuning, inclusive; steps without a measured time have none.
    `since`, `until`: when the run started; the first inclusive, the second exclusive.
    """

    runs: tuple[str, ...] = ()
    shapes: tuple[str, ...] = ()
    archs: tuple[str, ...] = ()
    chips: tuple[str, ...] = ()
    policies: tuple[str, ...] = ()
    outcomes: tuple[str, ...] = ()
    environments: tuple[str, ...] = ()
    cutlass: tuple[str, ...] = ()
    min_speedup: float | None = None
    max_speedup: float | None = None
    since: datetime | None = None
    until: datetime | None = None


ALL_STEPS = StepFilter()


def sortable(date: str | datetime) -> str:
    """A date as the column `created_at` holds it: ISO 8601 in UTC with microseconds, so that text sorts as time does."""
    moment = datetime.fromisoformat(date) if isinstance(date, str) else date
    return moment.astimezone(UTC).isoformat(timespec="microseconds")


def run_conditions(steps: StepFilter) -> ColumnElement[bool]:
    own = tables.runs.c
    conditions = [
        one_of(own.run_id, steps.runs),
        one_of(own.shape, steps.shapes),
        one_of(own.arch, steps.archs),
        one_of(own.chip, steps.chips),
        one_of(own.policy, steps.policies),
        one_of(own.cutlass, steps.cutlass),
    ]
    if steps.since is not None:
        conditions.append(own.created_at >= sortable(steps.since))
    if steps.until is not None:
        conditions.append(own.created_at < sortable(steps.until))
    return and_(*conditions)


def step_conditions(steps: StepFilter) -> ColumnElement[bool]:
    own, environments = tables.steps.c, tables.environments.c
    conditions = [one_of(own.status, steps.outcomes)]
    if steps.environments:
        named = select(environments.key).where(environments.label.in_(steps.environments))
        conditions.append(own.environment.in_(named))
    if steps.min_speedup is not None:
        conditions.append(own.speedup >= steps.min_speedup)
    if steps.max_speedup is not None:
        conditions.append(own.speedup <= steps.max_speedup)
    return and_(*conditions)


def one_of(column: Any, values: Sequence[str]) -> ColumnElement[bool]:
    return column.in_(values) if values else true()
