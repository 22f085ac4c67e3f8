"""The measured schedules of a store's runs, without their sources."""

from collections.abc import Iterator
from typing import NamedTuple

from sqlalchemy import Connection, select

from cudal2_agent.contract.plan.chip import Chip
from cudal2_agent.contract.records.candidate import ScheduleValue
from cudal2_agent.contract.records.task import GemmTask
from cudal2_agent.contract.reward.reward import FLOOR
from cudal2_agent.store import tables
from cudal2_agent.store.reader import PlainReader
from cudal2_agent.store.store import Store


class ScoredSchedule(NamedTuple):
    """A measured schedule. `reward`: logarithm of the speedup, clipped. `speedup`: over cuBLASLt-AutoTuning."""

    values: dict[str, ScheduleValue]
    reward: float
    speedup: float


class StoredSearch(NamedTuple):
    """One run's schedules that were measured and have a reward, the best first."""

    run_id: str
    task: GemmTask
    chip: Chip
    scored: tuple[ScoredSchedule, ...]


def stored_searches(store: Store) -> Iterator[StoredSearch]:
    """The runs with a rewarded schedule, by the time of their start."""
    own = tables.runs.c
    with store.reading() as (connection, reader):
        for row in connection.execute(select(tables.runs).order_by(own.created_at, own.run_id)).all():
            scored = _scored(connection, reader, row.key)
            if scored:
                plain = reader.run(row)
                task, chip = GemmTask.model_validate(plain["task"]), Chip.model_validate(plain["chip"])
                yield StoredSearch(row.run_id, task, chip, scored)


def _scored(connection: Connection, reader: PlainReader, run: int) -> tuple[ScoredSchedule, ...]:
    """Of a schedule that was measured again, the later step counts."""
    own = tables.steps.c
    measured = select(own.index, own.reward, own.speedup).where(
        (own.run == run) & own.speedup.is_not(None) & (own.reward > FLOOR)
    )
    figures = {row[0]: (row[1], row[2]) for row in connection.execute(measured)}
    latest: dict[frozenset[tuple[str, ScheduleValue]], ScoredSchedule] = {}
    for index, parts in reader.step_parts(run, figures.keys()):
        if values := parts["origin"]["schedule"]:
            latest[frozenset(values.items())] = ScoredSchedule(values, *figures[index])
    return tuple(sorted(latest.values(), key=lambda one: -one.reward))
