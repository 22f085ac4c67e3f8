"""All steps as a flat table for pandas and DuckDB: scalar columns, and records as JSON text. Written as Parquet."""

import json
from collections.abc import Iterator
from importlib import import_module
from pathlib import Path
from typing import Any

from pydantic import BaseModel

from cudal2_agent.contract.errors import UsageError
from cudal2_agent.contract.records.trajectory import Step, Trajectory
from cudal2_agent.contract.reward.reward import gap_closed
from cudal2_agent.contract.reward.roofline import roofline_us
from cudal2_agent.contract.reward.speedup import speedup_that_counts
from cudal2_agent.policies.exports.columns import PARQUET, Column, Columns
from cudal2_agent.policies.exports.formats import Row
from cudal2_agent.policies.exports.samples import baseline_us, environments, exchanges_by_candidate, is_verified, latest_steps
from cudal2_agent.policies.exports.seen import hits_of, retrieved_json
from cudal2_agent.policies.exports.task_columns import task_columns

ROW_GROUP = 512  # rows that are held in memory


def table_rows(trajectory: Trajectory) -> Iterator[Row]:
    """Every step, those without a reward and earlier measurements included. `latest`: no later step has its candidate."""
    latest = {step.index for step in latest_steps(trajectory.steps)}
    places = environments(trajectory.steps)
    written = exchanges_by_candidate(trajectory)
    hits = hits_of(trajectory)
    for step in trajectory.steps:
        exchange = written.get(step.candidate.id)
        row = {
            **_run_columns(trajectory),
            **_step_columns(step, trajectory),
            "model": exchange.model if exchange else "",
            "environment": places[step.index],
            "latest": step.index in latest,
            "exchange": _json(exchange),
            "hits": retrieved_json(exchange, trajectory.observations[step.observation_id], hits),
            "seen_profile": _json(trajectory.observations[step.observation_id].profile),
        }
        yield {name: row[name] for name in PARQUET}


def _run_columns(trajectory: Trajectory) -> Row:
    run = trajectory.run
    return {
        "run_id": run.run_id,
        "seed": run.seed,
        "shape": run.task.shape,
        **task_columns(run.task),
        "chip": run.chip.name,
        "cutlass": run.settings.cutlass,
        "roofline_us": roofline_us(run.task, run.chip),
        "versions": json.dumps(run.versions, sort_keys=True),
    }


def _step_columns(step: Step, trajectory: Trajectory) -> Row:
    task, chip = trajectory.run.task, trajectory.run.chip
    candidate, evaluation = step.candidate, step.evaluation
    plan = getattr(candidate, "plan", None)
    closed = gap_closed(evaluation, task, chip, candidate.origin) if step.reward is not None else None
    return {
        "index": step.index,
        "round": step.round,
        "created_at": step.created_at,
        "policy": candidate.origin.policy,
        "candidate_id": candidate.id,
        "observation_id": step.observation_id,
        "status": evaluation.status,
        "fault": evaluation.fault or None,
        "verified": is_verified(step, task, chip),
        "reward": step.reward,
        "gap_closed": closed,
        "speedup": speedup_that_counts(evaluation),
        "time_us": evaluation.time_us,
        "baseline_us": baseline_us(evaluation),
        "predicted_us": evaluation.predicted_us,
        "source": candidate.source,
        "schedule": json.dumps(candidate.origin.schedule) if candidate.origin.schedule else None,
        "plan": _json(plan),
        "evaluation": _json(evaluation),
        "diagnosis": _json(step.diagnosis),
        "profile": _json(step.profile),
        "seconds": json.dumps(step.seconds),
    }


def _json(record: BaseModel | None) -> str | None:
    return record.model_dump_json() if record is not None else None


class ParquetFile:
    """Rows as one Parquet file in zstd, written in groups. Raises: UsageError where pyarrow is missing."""

    def __init__(self, path: Path, columns: Columns) -> None:
        try:
            pyarrow, parquet = import_module("pyarrow"), import_module("pyarrow.parquet")
        except ModuleNotFoundError as exc:
            raise UsageError("Parquet needs the package pyarrow; install it: pip install 'cudal2-agent[data]'") from exc
        self._arrow: Any = pyarrow
        self._schema = pyarrow.schema([(name, _arrow_type(pyarrow, column)) for name, column in columns.items()])
        self._writer = parquet.ParquetWriter(path, self._schema, compression="zstd")
        self._rows: list[Row] = []

    def write(self, row: Row) -> None:
        self._rows.append(row)
        if len(self._rows) >= ROW_GROUP:
            self._flush()

    def close(self) -> None:
        self._flush()
        self._writer.close()

    def _flush(self) -> None:
        if self._rows:
            self._writer.write_table(self._arrow.Table.from_pylist(self._rows, schema=self._schema))
            self._rows = []


def _arrow_type(arrow: Any, column: Column) -> Any:
    if not isinstance(column, str):
        raise TypeError(f"a flat table has no column of type {column}")
    if column == "bool":
        return arrow.bool_()
    return arrow.timestamp("us", tz="UTC") if column.startswith("timestamp") else getattr(arrow, column)()
