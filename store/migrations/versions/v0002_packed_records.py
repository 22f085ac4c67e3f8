"""Records are packed, parts that several records share are stored once, and each step has a narrow row.

The records are copied run by run, in one transaction. Ids stay as they are.
"""

import json
from collections.abc import Iterator
from typing import Any

import sqlalchemy as sa
from alembic import op

from cudal2_agent.store import tables
from cudal2_agent.store.packing import Packer
from cudal2_agent.store.plain_records import Plain
from cudal2_agent.store.writer import PlainWriter

revision, down_revision = "0002", "0001"

_OLD = ("steps", "exchanges", "runs", "observations", "candidates", "prompts")  # those that refer to others come first


def upgrade() -> None:
    connection = op.get_bind()
    for name in _OLD:
        op.rename_table(name, f"old_{name}")
    tables.metadata.create_all(connection)
    old = sa.MetaData()
    old.reflect(connection, only=[f"old_{name}" for name in _OLD])
    _Copy(connection, old).all()
    for name in _OLD:
        op.drop_table(f"old_{name}")
    connection.execute(sa.update(tables.meta).where(tables.meta.c.key == "schema").values(value="2"))


class _Copy:
    def __init__(self, connection: sa.Connection, old: sa.MetaData) -> None:
        self._connection = connection
        self._old = {name: old.tables[f"old_{name}"] for name in _OLD}
        self._writer = PlainWriter(connection, Packer())

    def all(self) -> None:
        runs = self._old["runs"]
        for run_id in (
            self._connection.execute(sa.select(runs.c.run_id).order_by(runs.c.created_at, runs.c.run_id)).scalars().all()
        ):
            self._run(run_id)

    def _run(self, run_id: str) -> None:
        self._writer.start_run(self._record("runs", "run_id", run_id))
        # Observations of rounds without a step are named by exchanges only; others that nothing names are left behind.
        exchanges = list(self._exchanges(run_id))
        for exchange in exchanges:
            if self._has("observations", exchange["observation_id"]):
                self._observation(run_id, exchange["observation_id"])
        for step in self._steps(run_id):
            self._observation(run_id, step["observation_id"])
            self._writer.record_step(step)
        for exchange in exchanges:
            self._writer.record_exchange(run_id, exchange)

    def _observation(self, run_id: str, id_: str) -> None:
        if not self._writer.has_observation(id_):
            self._writer.record_observation(run_id, id_, self._record("observations", "id", id_))

    def _steps(self, run_id: str) -> Iterator[Plain]:
        old = self._old["steps"]
        query = sa.select(old.c.index, old.c.candidate_id, old.c.record).where(old.c.run_id == run_id).order_by(old.c.index)
        for _, candidate_id, record in self._connection.execute(query).all():
            step = _plain(record)
            step["candidate"] = {**self._record("candidates", "id", candidate_id), **step["candidate"]}
            yield step

    def _exchanges(self, run_id: str) -> Iterator[Plain]:
        old = self._old["exchanges"]
        query = sa.select(old.c.prompt_id, old.c.record).where(old.c.run_id == run_id)
        for prompt_id, record in self._connection.execute(query.order_by(old.c.round, old.c.sample, old.c.turn)).all():
            yield {**_plain(record), "prompt": self._record("prompts", "id", prompt_id)}

    def _has(self, table: str, id_: str) -> bool:
        old = self._old[table]
        return self._connection.execute(sa.select(old.c.id).where(old.c.id == id_)).first() is not None

    def _record(self, table: str, key: str, value: str) -> Plain:
        old = self._old[table]
        return _plain(self._connection.execute(sa.select(old.c.record).where(old.c[key] == value)).scalar_one())


def _plain(text: str) -> Plain:
    plain: Plain = _numbers(json.loads(text))
    return plain


def _numbers(value: Any) -> Any:
    """Records of 0.1 spell NaN and infinities as strings, in the error of a test only."""
    if isinstance(value, dict):
        return {
            name: float(inner) if name == "worst" and isinstance(inner, str) else _numbers(inner)
            for name, inner in value.items()
        }
    return [_numbers(inner) for inner in value] if isinstance(value, list) else value
