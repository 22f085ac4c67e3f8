"""The trajectory store: runs, observations, candidates (each once) and steps. SQLAlchemy over SQLite or any URL."""

import json
from collections.abc import Mapping, Sequence
from typing import Any, Self, TypeVar

from pydantic import BaseModel, ValidationError
from sqlalchemy import Connection, Engine, Table, func, insert, select, update
from sqlalchemy.exc import IntegrityError

from contract.errors import StoreError, UsageError
from contract.exchange import Exchange, Prompt
from contract.trajectory import Observation, RunRecord, Step, Trajectory
from policies.trajectories import tables
from policies.trajectories.engine import BUSY_TIMEOUT_S, open_engine, translated, writing

R = TypeVar("R", bound=BaseModel)


def open_store(url: str, busy_timeout_s: float = BUSY_TIMEOUT_S) -> "Store":
    """The store at an SQLAlchemy URL, created if it does not exist. Raises: StoreError."""
    return Store(open_engine(url, busy_timeout_s))


class Store:
    """`contract.protocols.TrajectoryStore`. Writes are durable when a method returns."""

    def __init__(self, engine: Engine) -> None:
        self._engine = engine

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def close(self) -> None:
        self._engine.dispose()

    def start_run(self, run: RunRecord) -> None:
        """Raises: StoreError where a run of that id exists."""
        with translated(self._engine.url), writing(self._engine) as connection:
            if connection.execute(select(tables.runs.c.run_id).where(tables.runs.c.run_id == run.run_id)).first():
                raise StoreError(f"run {run.run_id} exists already; resume it or start another")
            connection.execute(insert(tables.runs).values(_run_row(run)))

    def update_run(self, run: RunRecord) -> None:
        """Raises: UsageError where there is no such run."""
        with translated(self._engine.url), writing(self._engine) as connection:
            if not _replace(connection, tables.runs, {"run_id": run.run_id}, _run_row(run)):
                raise _no_run(run.run_id)

    def record_observation(self, observation: Observation) -> str:
        row = {"id": observation.id, "record": observation.model_dump_json()}
        with translated(self._engine.url), writing(self._engine) as connection:
            _add_once(connection, tables.observations, row)
        return row["id"]

    def record_step(self, step: Step) -> None:
        """Idempotent by (run_id, index). Raises: StoreError where its run or observation was never recorded."""
        candidate = {"id": step.candidate.id, "record": step.candidate.model_dump_json(exclude={"origin"})}
        key = {"run_id": step.run_id, "index": step.index}
        try:
            with translated(self._engine.url), writing(self._engine) as connection:
                _add_once(connection, tables.candidates, candidate)
                if not _replace(connection, tables.steps, key, _step_row(step)):
                    connection.execute(insert(tables.steps).values({**key, **_step_row(step)}))
        except StoreError as exc:
            if isinstance(exc.__cause__, IntegrityError):
                raise StoreError(f"step {step.index} names run {step.run_id} or an observation that was not recorded") from exc
            raise

    def record_exchange(self, run_id: str, exchange: Exchange) -> None:
        """Idempotent by (run_id, round, sample, turn). Raises: StoreError where its run was never recorded."""
        prompt = {"id": exchange.prompt.id, "record": exchange.prompt.model_dump_json()}
        key = {"run_id": run_id, "round": exchange.round, "sample": exchange.sample, "turn": exchange.turn}
        row = {"prompt_id": prompt["id"], "status": exchange.status, "record": exchange.model_dump_json(exclude={"prompt"})}
        try:
            with translated(self._engine.url), writing(self._engine) as connection:
                _add_once(connection, tables.prompts, prompt)
                if not _replace(connection, tables.exchanges, key, row):
                    connection.execute(insert(tables.exchanges).values({**key, **row}))
        except StoreError as exc:
            if isinstance(exc.__cause__, IntegrityError):
                raise StoreError(f"exchange {exchange.place} names run {run_id}, which was not recorded") from exc
            raise

    def exchanges(self, run_id: str) -> list[Exchange]:
        """Exchanges of a run by round, sample and turn; an empty list where it has none."""
        own = tables.exchanges.c
        query = (
            select(own.record, tables.prompts.c.record)
            .join(tables.prompts, tables.prompts.c.id == own.prompt_id)
            .where(own.run_id == run_id)
            .order_by(own.round, own.sample, own.turn)
        )
        with translated(self._engine.url), self._engine.connect() as connection:
            rows = connection.execute(query).all()
        return [_load_exchange(text, prompt, f"an exchange of run {run_id}") for text, prompt in rows]

    def run(self, run_id: str) -> RunRecord:
        """Raises: UsageError where there is no such run."""
        with translated(self._engine.url), self._engine.connect() as connection:
            text = connection.execute(select(tables.runs.c.record).where(tables.runs.c.run_id == run_id)).scalar_one_or_none()
        if text is None:
            raise _no_run(run_id)
        return _load(RunRecord, text, f"run {run_id}")

    def runs(self) -> list[RunRecord]:
        """Oldest first."""
        query = select(tables.runs.c.run_id, tables.runs.c.record).order_by(tables.runs.c.created_at, tables.runs.c.run_id)
        with translated(self._engine.url), self._engine.connect() as connection:
            rows = connection.execute(query).all()
        return [_load(RunRecord, text, f"run {run_id}") for run_id, text in rows]

    def step_counts(self) -> dict[str, int]:
        """Number of steps per run; runs without a step are absent."""
        query = select(tables.steps.c.run_id, func.count()).group_by(tables.steps.c.run_id)
        with translated(self._engine.url), self._engine.connect() as connection:
            return {row[0]: row[1] for row in connection.execute(query)}

    def steps(self, run_id: str) -> list[Step]:
        """Steps of a run by index; an empty list where it has none yet."""
        query = (
            select(tables.steps.c.index, tables.steps.c.record, tables.candidates.c.record)
            .join(tables.candidates, tables.candidates.c.id == tables.steps.c.candidate_id)
            .where(tables.steps.c.run_id == run_id)
            .order_by(tables.steps.c.index)
        )
        with translated(self._engine.url), self._engine.connect() as connection:
            rows = connection.execute(query).all()
        return [_load_step(step, candidate, f"step {index} of run {run_id}") for index, step, candidate in rows]

    def observation(self, observation_id: str) -> Observation:
        """Raises: StoreError where it was never recorded."""
        found = self._observations([observation_id])
        if observation_id not in found:
            raise StoreError(f"observation {observation_id} is not in the store")
        return found[observation_id]

    def trajectory(self, run_id: str) -> Trajectory:
        """Raises: UsageError where there is no such run."""
        run, steps = self.run(run_id), self.steps(run_id)
        return Trajectory(
            run=run,
            steps=tuple(steps),
            observations=self._observations([step.observation_id for step in steps]),
            exchanges=tuple(self.exchanges(run_id)),
        )

    def _observations(self, ids: Sequence[str]) -> dict[str, Observation]:
        query = select(tables.observations.c.id, tables.observations.c.record).where(tables.observations.c.id.in_(set(ids)))
        with translated(self._engine.url), self._engine.connect() as connection:
            rows = connection.execute(query).all()
        return {key: _load(Observation, text, f"observation {key}") for key, text in rows}


def _no_run(run_id: str) -> UsageError:
    return UsageError(f"there is no run {run_id!r}; `cudal2-agent runs list` shows those there are")


def _run_row(run: RunRecord) -> dict[str, Any]:
    return {
        "run_id": run.run_id,
        "created_at": run.created_at.isoformat(),
        "status": run.status,
        "shape": run.task.shape,
        "record": run.model_dump_json(),
    }


def _step_row(step: Step) -> dict[str, Any]:
    """The columns of a step; its record holds only the origin of its candidate."""
    record = step.model_dump_json(exclude={"candidate": set(type(step.candidate).model_fields) - {"origin"}})
    return {
        "observation_id": step.observation_id,
        "candidate_id": step.candidate.id,
        "status": step.evaluation.status,
        "reward": step.reward,
        "record": record,
    }


def _load_step(step_text: str, candidate_text: str, what: str) -> Step:
    try:
        step, candidate = json.loads(step_text), json.loads(candidate_text)
        step["candidate"] = {**candidate, **step["candidate"]}
        return Step.model_validate_json(json.dumps(step))
    except (ValueError, KeyError, TypeError) as exc:
        raise _unreadable(what, exc) from exc


def _load_exchange(text: str, prompt_text: str, what: str) -> Exchange:
    prompt = _load(Prompt, prompt_text, f"the prompt of {what}")
    try:
        return Exchange.model_validate_json(json.dumps({**json.loads(text), "prompt": prompt.model_dump(mode="json")}))
    except (ValueError, TypeError) as exc:
        raise _unreadable(what, exc) from exc


def _load(record: type[R], text: str, what: str) -> R:
    try:
        return record.model_validate_json(text)
    except ValidationError as exc:
        raise _unreadable(what, exc) from exc


def _unreadable(what: str, exc: Exception) -> StoreError:
    return StoreError(f"{what} in the store cannot be read; another version may have written it", log=str(exc))


def _add_once(connection: Connection, table: Table, row: Mapping[str, str]) -> None:
    """Inserts a content-addressed row unless it exists. SQLite's write lock makes this atomic, elsewhere a savepoint does."""
    if connection.execute(select(table.c.id).where(table.c.id == row["id"])).first():
        return
    try:
        with connection.begin_nested():
            connection.execute(insert(table).values(row))
    except IntegrityError:
        if not connection.execute(select(table.c.id).where(table.c.id == row["id"])).first():
            raise


def _replace(connection: Connection, table: Table, key: Mapping[str, Any], row: Mapping[str, Any]) -> bool:
    """Overwrites the row of a key; whether there was one."""
    query = update(table).values(row)
    for name, value in key.items():
        query = query.where(table.c[name] == value)
    return connection.execute(query).rowcount > 0
