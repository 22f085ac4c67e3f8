"""Deletes steps and runs, and the parts that nothing else refers to. One transaction: all of it is gone, or nothing.

Dictionaries stay, because other processes may be packing records with them. An observation that no step names yet belongs to
a round in progress: while other runs are running, only observations of deleted steps are freed.
"""

from collections.abc import Sequence
from typing import Any

from sqlalchemy import (
    BigInteger,
    Column,
    ColumnElement,
    Connection,
    MetaData,
    Select,
    Table,
    and_,
    case,
    delete,
    exists,
    func,
    insert,
    or_,
    select,
    true,
    union,
)

from cudal2_agent.contract.base import Record
from cudal2_agent.contract.errors import UsageError
from cudal2_agent.store.filters import StepFilter, run_conditions, step_conditions
from cudal2_agent.store.store import Store
from cudal2_agent.store.tables import (
    contents,
    environments,
    exchanges,
    observation_contents,
    observations,
    runs,
    step_records,
    steps,
)

_SHOWN_RUNS = 3


class Pruned(Record):
    """Rows that were deleted, or would be. `contents`: candidates, prompts, profiles and retrieved chunks."""

    runs: int
    steps: int
    exchanges: int
    observations: int
    contents: int

    @property
    def rows(self) -> int:
        return self.runs + self.steps + self.exchanges + self.observations + self.contents


def prune(
    store: Store, selected: StepFilter, *, keep_best: int | None = None, force: bool = False, dry_run: bool = False
) -> Pruned:
    """Delete the selected steps, and the runs that have none left. A selection by runs alone deletes these whole.

    `keep_best`: so many steps of each run stay, those with the best speedups. `force`: also steps of running runs.
    Raises: UsageError where a running run would lose steps; StoreError.
    """
    with store.writing() as connection:
        doomed = _Doomed(connection)
        doomed.choose(selected, keep_best)
        if not force:
            _refuse_running(connection, doomed)
        doomed.choose_parts()
        found = doomed.counts()
        if not dry_run:
            doomed.delete()
        doomed.close()
    return found


class _Doomed:
    """The keys of what goes, in temporary tables, which a rollback takes away too."""

    def __init__(self, connection: Connection) -> None:
        self._connection = connection
        self._metadata = MetaData()
        self.steps, self.runs, self.observations, self.contents = (
            Table(f"doomed_{name}", self._metadata, Column("key", BigInteger, primary_key=True), prefixes=["TEMPORARY"])
            for name in ("steps", "runs", "observations", "contents")
        )
        self._metadata.create_all(connection, checkfirst=False)

    def close(self) -> None:
        self._metadata.drop_all(self._connection, checkfirst=False)

    def choose(self, selected: StepFilter, keep_best: int | None) -> None:
        """The steps, and the runs of which nothing is left."""
        chosen = select(runs.c.key).where(run_conditions(selected))
        unwanted = select(steps.c.key).where(steps.c.run.in_(chosen), step_conditions(selected))
        if keep_best is not None:
            unwanted = unwanted.where(steps.c.key.not_in(_best(chosen, keep_best)))
        self._add(self.steps, unwanted)
        whole_runs = keep_best is None and selected == selected.model_copy(update=_NO_STEP_CONDITIONS)
        left = exists(select(steps.c.key).where(steps.c.run == runs.c.key, steps.c.key.not_in(select(self.steps.c.key))))
        had = exists(select(steps.c.key).where(steps.c.run == runs.c.key))
        self._add(self.runs, chosen.where(true() if whole_runs else and_(had, ~left)))

    def choose_parts(self) -> None:
        """The observations and contents to which nothing that stays refers."""
        self._add(self.observations, self._unused_observations())
        kept_observation = observation_contents.c.observation.not_in(select(self.observations.c.key))
        users = (
            exists(select(steps.c.key).where(steps.c.candidate == contents.c.key, self._stays(steps))),
            exists(select(steps.c.key).where(steps.c.profile == contents.c.key, self._stays(steps))),
            exists(select(exchanges.c.run).where(exchanges.c.prompt == contents.c.key, self._stays(exchanges))),
            exists(
                select(observation_contents.c.place).where(observation_contents.c.content == contents.c.key, kept_observation)
            ),
        )
        self._add(self.contents, select(contents.c.key).where(~or_(*users)))

    def counts(self) -> Pruned:
        lost = select(func.count()).select_from(exchanges).where(~self._stays(exchanges))
        own = {name: select(func.count()).select_from(table) for name, table in self._tables().items()}
        return Pruned(
            **{name: self._connection.execute(query).scalar_one() for name, query in {**own, "exchanges": lost}.items()}
        )

    def delete(self) -> None:
        """Rows that refer to others go first."""
        for table, condition in (
            (step_records, step_records.c.step.in_(select(self.steps.c.key))),
            (steps, steps.c.key.in_(select(self.steps.c.key))),
            (exchanges, ~self._stays(exchanges)),
            (observation_contents, observation_contents.c.observation.in_(select(self.observations.c.key))),
            (observations, observations.c.key.in_(select(self.observations.c.key))),
            (runs, runs.c.key.in_(select(self.runs.c.key))),
            (contents, contents.c.key.in_(select(self.contents.c.key))),
            (environments, environments.c.key.not_in(select(steps.c.environment).where(steps.c.environment.is_not(None)))),
        ):
            self._connection.execute(delete(table).where(condition))

    def _tables(self) -> dict[str, Table]:
        return {"runs": self.runs, "steps": self.steps, "observations": self.observations, "contents": self.contents}

    def _stays(self, table: Table) -> ColumnElement[bool]:
        if table is exchanges:
            return exchanges.c.run.not_in(select(self.runs.c.key))
        return steps.c.key.not_in(select(self.steps.c.key))

    def _unused_observations(self) -> Select[Any]:
        own = observations.c
        live = _with_parents(
            [select(table.c.observation.label("key")).where(self._stays(table)) for table in (steps, exchanges)], "live"
        )
        unused = select(own.key).where(own.key.not_in(select(live.c.key).where(live.c.key.is_not(None))))
        others = exists(select(runs.c.key).where(runs.c.status == "running", runs.c.key.not_in(select(self.runs.c.key))))
        if not self._connection.execute(select(others)).scalar_one():
            return unused
        gone = _with_parents(
            [select(table.c.observation.label("key")).where(~self._stays(table)) for table in (steps, exchanges)], "gone"
        )
        return unused.where(own.key.in_(select(gone.c.key)))

    def _add(self, table: Table, keys: Select[Any]) -> None:
        self._connection.execute(insert(table).from_select(["key"], keys))


_NO_STEP_CONDITIONS = {"outcomes": (), "environments": (), "min_speedup": None, "max_speedup": None}


def _best(chosen: Select[Any], count: int) -> Select[Any]:
    """The best steps of each run: by speedup, then those without a fault, then the earliest."""
    failed = case((steps.c.status.in_(("measured", "unmeasured")), 0), else_=1)
    order = (steps.c.speedup.desc().nulls_last(), failed, steps.c.index)
    place = func.row_number().over(partition_by=steps.c.run, order_by=order).label("place")
    ranked = select(steps.c.key, place).where(steps.c.run.in_(chosen)).subquery()
    return select(ranked.c.key).where(ranked.c.place <= count)


def _with_parents(queries: Sequence[Select[Any]], name: str) -> Any:
    """The observations that queries name, and those to whose attempts they refer."""
    named = union(*queries).subquery()
    found = select(named.c.key).cte(name, recursive=True)
    return found.union(select(observations.c.parent).join(found, observations.c.key == found.c.key))


def _refuse_running(connection: Connection, doomed: _Doomed) -> None:
    losing = select(steps.c.run).where(steps.c.key.in_(select(doomed.steps.c.key)))
    of_these = or_(runs.c.key.in_(losing), runs.c.key.in_(select(doomed.runs.c.key)))
    query = select(runs.c.run_id).where(runs.c.status == "running", of_these).order_by(runs.c.run_id)
    found = connection.execute(query).scalars().all()
    if found:
        more = f" and {len(found) - _SHOWN_RUNS:,} more" if len(found) > _SHOWN_RUNS else ""
        raise UsageError(f"{', '.join(found[:_SHOWN_RUNS])}{more} are running; wait for them, or delete them too with --force")
