"""The trajectory store: runs, observations, candidates (each once), steps and exchanges, in SQLite or PostgreSQL."""

from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from typing import Any, Self, TypeVar

from pydantic import BaseModel, ValidationError
from sqlalchemy import ColumnElement, Connection, Engine, func, select, true

from cudal2_agent.contract.errors import StoreError, UsageError
from cudal2_agent.contract.protocols import TrajectoryStore
from cudal2_agent.contract.records.baseline import TunedBaseline
from cudal2_agent.contract.records.campaign import ShapeResult
from cudal2_agent.contract.records.exchange import Exchange
from cudal2_agent.contract.records.module_campaign import ModuleResult
from cudal2_agent.contract.records.task import GemmTask
from cudal2_agent.contract.records.trajectory import Observation, RunRecord, Step, Trajectory
from cudal2_agent.store import tables
from cudal2_agent.store.campaign_results import ALL_RESULTS, ResultFilter, find_tuned, keep_tuned, read_modules, read_results
from cudal2_agent.store.engine import BUSY_TIMEOUT_S, compact, open_engine, translated, writing
from cudal2_agent.store.filters import ALL_STEPS, StepFilter, run_conditions, step_conditions
from cudal2_agent.store.packing import Packer, named
from cudal2_agent.store.plain_records import Plain
from cudal2_agent.store.reader import PlainReader
from cudal2_agent.store.writer import OBSERVATIONS, PlainWriter

R = TypeVar("R", bound=BaseModel)


def open_store(url: str, busy_timeout_s: float = BUSY_TIMEOUT_S) -> "Store":
    """The store at an SQLAlchemy URL, created if it does not exist. Raises: StoreError."""
    return Store(open_engine(url, busy_timeout_s))


class Writer:
    """Records of one transaction. Nothing of it is in the store before its end."""

    def __init__(self, plain: PlainWriter) -> None:
        self._plain = plain

    def start_run(self, run: RunRecord) -> None:
        """Raises: StoreError where a run of that id exists."""
        self._plain.start_run(run.model_dump(mode="json"))

    def update_run(self, run: RunRecord) -> None:
        """Raises: UsageError where there is no such run."""
        if not self._plain.update_run(run.model_dump(mode="json")):
            raise _no_run(run.run_id)

    def record_observation(self, run_id: str, observation: Observation) -> str:
        """The id of the observation, which is stored once."""
        self._plain.record_observation(run_id, observation.id, observation.model_dump(mode="json"))
        return observation.id

    def record_step(self, step: Step) -> None:
        """Idempotent by (run_id, index). Raises: StoreError where its run or observation was never recorded."""
        self._plain.record_step(step.model_dump(mode="json"))

    def record_exchange(self, run_id: str, exchange: Exchange) -> None:
        """Idempotent by (run_id, round, sample, turn). Raises: StoreError where its run was never recorded."""
        self._plain.record_exchange(run_id, exchange.model_dump(mode="json"))


class Store:
    """The protocols `TrajectoryStore` and `BaselineBook` of the contract. Writes are durable when a method returns."""

    def __init__(self, engine: Engine) -> None:
        self._engine = engine
        self._packer = Packer()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def close(self) -> None:
        self._engine.dispose()

    @contextmanager
    def batch(self) -> Iterator[Writer]:
        """Many records in one transaction: all of them are stored at its end, or none where it fails."""
        with self.writing() as connection:
            yield Writer(PlainWriter(connection, self._packer))

    @contextmanager
    def writing(self) -> Iterator[Connection]:
        """A transaction of one writer."""
        try:
            with translated(self._engine.url), writing(self._engine) as connection:
                yield connection
        except BaseException:  # an interruption too: what the transaction added is rolled back
            self._packer.forget()
            raise

    @contextmanager
    def reading(self) -> Iterator[tuple[Connection, PlainReader]]:
        """One consistent state of the store."""
        with translated(self._engine.url), self._engine.connect() as connection:
            yield connection, PlainReader(connection, self._packer)

    def compact(self) -> None:
        """Gives the space of deleted records back to the disk. Raises: StoreError where the disk is full."""
        with translated(self._engine.url):
            compact(self._engine)

    def start_run(self, run: RunRecord) -> None:
        with self.batch() as batch:
            batch.start_run(run)

    def update_run(self, run: RunRecord) -> None:
        with self.batch() as batch:
            batch.update_run(run)

    def record_observation(self, run_id: str, observation: Observation) -> str:
        with self.batch() as batch:
            return batch.record_observation(run_id, observation)

    def record_step(self, step: Step) -> None:
        with self.batch() as batch:
            batch.record_step(step)

    def record_exchange(self, run_id: str, exchange: Exchange) -> None:
        with self.batch() as batch:
            batch.record_exchange(run_id, exchange)

    def run(self, run_id: str) -> RunRecord:
        """Raises: UsageError where there is no such run."""
        with self.reading() as (connection, reader):
            row = connection.execute(select(tables.runs).where(tables.runs.c.run_id == run_id)).one_or_none()
            if row is None:
                raise _no_run(run_id)
            return _load(RunRecord, reader.run(row), f"run {run_id}")

    def runs(self, steps: StepFilter = ALL_STEPS) -> list[RunRecord]:
        """The runs for which the filter's conditions on runs hold, oldest first."""
        own = tables.runs.c
        query = select(tables.runs).where(run_conditions(steps)).order_by(own.created_at, own.run_id)
        with self.reading() as (connection, reader):
            rows = connection.execute(query).all()
            return [_load(RunRecord, reader.run(row), f"run {row.run_id}") for row in rows]

    def step_counts(self) -> dict[str, int]:
        """Number of steps per run; runs without a step are absent."""
        runs, steps = tables.runs.c, tables.steps.c
        query = select(runs.run_id, func.count()).join_from(tables.steps, tables.runs, runs.key == steps.run).group_by(runs.key)
        with self.reading() as (connection, _):
            return {row[0]: row[1] for row in connection.execute(query)}

    def steps(self, run_id: str) -> list[Step]:
        """Steps of a run by index; an empty list where it has none yet."""
        with self.reading() as (_, reader):
            return [_load_step(plain) for _, plain in reader.steps(run_id, true())]

    def observation(self, observation_id: str) -> Observation:
        """Raises: StoreError where it was never recorded."""
        with self.reading() as (connection, reader):
            key = OBSERVATIONS.find(connection, named(observation_id))
            if key is None:
                raise StoreError(f"observation {observation_id} is not in the store")
            return _load_observation(reader.observation(key), observation_id)

    def exchanges(self, run_id: str) -> list[Exchange]:
        """Exchanges of a run by round, sample and turn; an empty list where it has none."""
        with self.reading() as (_, reader):
            return [_load(Exchange, plain, f"an exchange of run {run_id}") for plain in reader.exchanges(run_id)]

    def trajectory(self, run_id: str) -> Trajectory:
        """Raises: UsageError where there is no such run."""
        return self._trajectory(self.run(run_id), true())

    def trajectories(self, steps: StepFilter = ALL_STEPS) -> Iterator[Trajectory]:
        """The runs with a step for which the filter holds, oldest first, each with these steps. One is in memory at a time."""
        own, where = tables.runs.c, step_conditions(steps)
        query = select(own.run_id).where(run_conditions(steps)).order_by(own.created_at, own.run_id)
        with self.reading() as (connection, _):
            ids: Sequence[str] = connection.execute(query).scalars().all()
        for run_id in ids:
            trajectory = self._trajectory(self.run(run_id), where)
            if trajectory.steps:
                yield trajectory

    def results(self, wanted: ResultFilter = ALL_RESULTS) -> list[ShapeResult]:
        """Results of campaigns by shape, layout and mode; of one task the oldest first. `campaign_queue.py` records them."""
        with self.reading() as (connection, _):
            return [stored.result for stored in read_results(connection, wanted)]

    def modules(self, wanted: ResultFilter = ALL_RESULTS) -> list[ModuleResult]:
        """Rows of modules by name; of one module the oldest first."""
        with self.reading() as (connection, _):
            return [stored.result for stored in read_modules(connection, wanted)]

    def tuned(self, task: GemmTask, environment: str) -> TunedBaseline | None:
        """None where the task was never tuned there."""
        with self.reading() as (connection, _):
            return find_tuned(connection, task, environment)

    def keep(self, baseline: TunedBaseline) -> None:
        """It takes the place of the one before."""
        with self.writing() as connection:
            keep_tuned(connection, baseline)

    def _trajectory(self, run: RunRecord, where: ColumnElement[bool]) -> Trajectory:
        with self.reading() as (_, reader):
            found = list(reader.steps(run.run_id, where))
            keys = {plain["observation_id"]: key for key, plain in found}
            return Trajectory(
                run=run,
                steps=tuple(_load_step(plain) for _, plain in found),
                observations={id_: _load_observation(reader.observation(key), id_) for id_, key in keys.items()},
                exchanges=tuple(
                    _load(Exchange, plain, f"an exchange of run {run.run_id}") for plain in reader.exchanges(run.run_id)
                ),
            )


def _no_run(run_id: str) -> UsageError:
    return UsageError(f"there is no run {run_id!r}; `cudal2-agent runs list` shows those there are")


def _load_step(plain: Plain) -> Step:
    return _load(Step, plain, f"step {plain['index']} of run {plain['run_id']}")


def _load_observation(plain: Plain, id_: str) -> Observation:
    return _load(Observation, plain, f"observation {id_}")


def _load(record: type[R], plain: Mapping[str, Any], what: str) -> R:
    try:
        return record.model_validate(plain)
    except ValidationError as exc:
        raise StoreError(f"{what} in the store cannot be read; another version may have written it", log=str(exc)) from exc


class RunExchanges:
    """`contract.protocols.ExchangeLog` of a run over the trajectory store."""

    def __init__(self, store: TrajectoryStore, run_id: str) -> None:
        self._store, self._run_id = store, run_id

    def record(self, exchange: Exchange) -> None:
        """Raises: StoreError where the run was never recorded."""
        self._store.record_exchange(self._run_id, exchange)

    def recorded(self) -> list[Exchange]:
        """By round, sample and turn."""
        return self._store.exchanges(self._run_id)
