"""Tuned baselines: one per task and environment, the last one kept."""

from sqlalchemy import Connection, insert, select, update

from cudal2_agent.contract.base import digest
from cudal2_agent.contract.records.baseline import TunedBaseline
from cudal2_agent.contract.records.task import GemmTask
from cudal2_agent.store.packing import named
from cudal2_agent.store.tables import tuned_baselines

_OWN = tuned_baselines.c


def find_tuned(connection: Connection, task: GemmTask, environment: str) -> TunedBaseline | None:
    """None where the task was never tuned there."""
    query = select(_OWN.record).where(_OWN.task == task.id, _OWN.environment == environment)
    text = connection.execute(query).scalar_one_or_none()
    return TunedBaseline.model_validate_json(text) if text is not None else None


def keep_tuned(connection: Connection, baseline: TunedBaseline) -> None:
    """Within a transaction of `Store.writing`, so that no other process adds the same row."""
    row = tuned_row(baseline)
    same = (_OWN.task == row["task"], _OWN.environment == row["environment"])
    if connection.execute(update(tuned_baselines).where(*same).values(**row)).rowcount == 0:
        connection.execute(insert(tuned_baselines).values(**row))


def tuned_row(baseline: TunedBaseline) -> dict[str, str]:
    """The columns of a tuned baseline."""
    record = baseline.model_dump_json()
    return {"task": baseline.task.id, "environment": baseline.environment, "hash": named(digest(record)), "record": record}
