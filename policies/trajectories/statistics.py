"""Counts over the store, by SQL alone: no record is unpacked."""

import math
from collections import Counter, defaultdict
from collections.abc import Iterator, Mapping, Sequence
from statistics import median
from typing import Any, Literal, NamedTuple

from sqlalchemy import (
    CTE,
    Column,
    ColumnElement,
    Connection,
    Float,
    Integer,
    Select,
    String,
    case,
    cast,
    exists,
    func,
    literal,
    null,
    select,
    true,
    union_all,
)
from sqlalchemy.types import TypeEngine

from contract.base import Record
from policies.trajectories.filters import StepFilter, run_conditions, step_conditions
from policies.trajectories.store import Store
from policies.trajectories.tables import environments, runs, steps

By = Literal["environment", "policy", "shape", "day"]
NO_ENVIRONMENT = "not measured"
MEASURED = "measured"
_BATCH = 1000
_DAY_CHARS = 10  # of an ISO date
_TYPES: dict[str, TypeEngine[Any]] = {"steps": Integer(), "rewarded": Integer(), "speedup": Float()}
_RUN_COLUMNS = ("run_id", "created_at", "status", "policy", "shape", "arch", "chip")


class RunRow(NamedTuple):
    """A run with counts over its selected steps. `speedup`: the best over cuBLASLt-AutoTuning, None where there is none."""

    run_id: str
    created_at: str
    status: str
    policy: str
    shape: str
    arch: str
    chip: str
    steps: int
    measured: int
    speedup: float | None


class Speedups(Record):
    """The best speedup of every shape over cuBLASLt-AutoTuning. `above_1`: the share of shapes that are faster."""

    shapes: int
    geometric_mean: float
    minimum: float
    median: float
    maximum: float
    above_1: float


class Group(Record):
    """One row of `--by`. `withheld`: measured steps without a reward. `speedups`: None where nothing was measured."""

    name: str
    runs: int
    steps: int
    measured: int
    withheld: int
    speedups: Speedups | None


class StoreStatistics(Record):
    """Counts over the selected steps. Unit of `store_bytes`: bytes of the whole store, whatever was selected."""

    runs: int
    steps: int
    shapes: int
    withheld: int
    outcomes: dict[str, int]
    policies: dict[str, int]
    archs: dict[str, int]
    chips: dict[str, int]
    environments: dict[str, int]
    speedups: Speedups | None
    store_bytes: int
    bytes_per_step: float | None
    by: By | None = None
    groups: tuple[Group, ...] = ()


def known_values(store: Store, field: str) -> Sequence[str]:
    """The values that a store holds of a field of `StepFilter`: chips, policies, cutlass or environments; in order."""
    columns: dict[str, Column[Any]] = {"chips": runs.c.chip, "policies": runs.c.policy, "cutlass": runs.c.cutlass}
    column = columns.get(field, environments.c.label)
    with store.reading() as (connection, _):
        found = connection.execute(select(column).distinct().order_by(column)).scalars().all()
    return [value for value in found if value]


def run_ids(store: Store, beginning: str) -> Sequence[str]:
    """The ids of runs that begin so, in order."""
    own = runs.c.run_id
    with store.reading() as (connection, _):
        return connection.execute(select(own).where(own.startswith(beginning, autoescape=True)).order_by(own)).scalars().all()


def run_count(store: Store, selected: StepFilter, *, empty: bool = False) -> int:
    """The number of rows that `run_rows` has without a limit."""
    with store.reading() as (connection, _):
        return connection.execute(select(func.count()).select_from(runs).where(_listed(selected, empty))).scalar_one()


def step_count(store: Store, selected: StepFilter) -> int:
    """The number of selected steps."""
    chosen = steps.c.run.in_(select(runs.c.key).where(run_conditions(selected)))
    with store.reading() as (connection, _):
        return connection.execute(select(func.count()).select_from(steps).where(chosen, step_conditions(selected))).scalar_one()


def run_rows(store: Store, selected: StepFilter, limit: int | None = None, *, empty: bool = False) -> Iterator[RunRow]:
    """The selected runs, oldest first; with a limit, the newest so many. `empty`: also runs without a selected step."""
    own = runs.c
    chosen = select(own.key, *(own[name] for name in _RUN_COLUMNS)).where(_listed(selected, empty))
    if limit is not None:
        chosen = chosen.order_by(own.created_at.desc(), own.run_id.desc()).limit(limit)
    newest = chosen.cte("newest")
    measured = func.sum(case((steps.c.status == MEASURED, 1), else_=0)).label("measured")
    counts = select(steps.c.run, func.count().label("steps"), measured, func.max(steps.c.speedup).label("speedup"))
    in_newest = steps.c.run.in_(select(newest.c.key))
    found = counts.where(step_conditions(selected), in_newest).group_by(steps.c.run).subquery()
    query = (
        select(*(newest.c[name] for name in _RUN_COLUMNS), func.coalesce(found.c.steps, 0), func.coalesce(found.c.measured, 0))
        .add_columns(found.c.speedup)
        .select_from(newest.join(found, found.c.run == newest.c.key, isouter=empty))
        .order_by(newest.c.created_at, newest.c.run_id)
    )
    with store.reading() as (connection, _):
        for row in connection.execution_options(yield_per=_BATCH).execute(query):
            yield RunRow(*row)


def store_statistics(store: Store, selected: StepFilter, by: By | None = None) -> StoreStatistics:
    """Counts over the selected steps, and the store's size."""
    with store.reading() as (connection, _):
        answers = [_Answer(*row) for row in connection.execute(_questions(selected, by))]
        total = connection.execute(select(func.count()).select_from(steps)).scalar_one()
        size = store_bytes(connection)
    counts = [answer for answer in answers if answer.kind == "steps"]
    best = [answer for answer in answers if answer.kind == "best"]
    members = {answer.group: answer.steps for answer in answers if answer.kind == "runs of a group"}
    return StoreStatistics(
        runs=sum(answer.steps for answer in answers if answer.kind == "runs"),
        steps=sum(answer.steps for answer in counts),
        shapes=len({answer.shape for answer in best}),
        withheld=sum(answer.withheld for answer in counts),
        outcomes=_tally(counts, "status"),
        policies=_tally(counts, "policy"),
        archs=_tally(counts, "arch"),
        chips=_tally(counts, "chip"),
        environments=_tally([answer for answer in counts if answer.environment], "environment"),
        speedups=_speedups(best),
        store_bytes=size,
        bytes_per_step=size / total if total else None,
        by=by,
        groups=_groups(members, counts, best) if by else (),
    )


def store_bytes(connection: Connection) -> int:
    """The size of the database."""
    if connection.dialect.name == "sqlite":
        pages, page_bytes = (connection.exec_driver_sql(f"PRAGMA {name}").scalar_one() for name in ("page_count", "page_size"))
        return int(pages) * int(page_bytes)
    return int(connection.execute(select(func.pg_database_size(func.current_database()))).scalar_one())


class _Answer(NamedTuple):
    """A row of the one query. `kind`: what it counts. `steps` counts runs where `kind` says so."""

    kind: str
    group: str
    policy: str
    shape: str
    arch: str
    chip: str
    status: str
    environment: str | None
    steps: int
    rewarded: int
    speedup: float | None

    @property
    def withheld(self) -> int:
        return self.steps - self.rewarded if self.status == MEASURED else 0


def _cells(selected: StepFilter) -> CTE:
    """Steps of one run with one outcome in one environment: groups over columns of one index, joined to their runs."""
    own, run = steps.c, runs.c
    counts = select(own.run, own.status, own.environment, func.count().label("steps"), func.count(own.reward).label("rewarded"))
    counts = counts.add_columns(func.max(own.speedup).label("speedup")).where(step_conditions(selected))
    part = counts.group_by(own.run, own.status, own.environment).subquery()
    return (
        select(part, func.substr(run.created_at, 1, _DAY_CHARS).label("day"), run.policy, run.shape, run.arch, run.chip)
        .add_columns(environments.c.label)
        .select_from(part.join(runs, run.key == part.c.run).outerjoin(environments, environments.c.key == part.c.environment))
        .where(run_conditions(selected))
        .cte("cells")
    )


def _questions(selected: StepFilter, by: By | None) -> Any:
    """One query, so that the steps are read once: counts of steps, the best speedup of each shape, and counts of runs."""
    cells = _cells(selected)
    own = cells.c
    columns = {"environment": own.label, "policy": own.policy, "shape": own.shape, "day": own.day}
    group: ColumnElement[str] = func.coalesce(columns[by], NO_ENVIRONMENT) if by else literal("")

    def rows(kind: str, keys: Mapping[str, ColumnElement[Any]], **values: ColumnElement[Any]) -> Select[Any]:
        named = {"group": group, **keys, **values}
        picked = [named.get(name, cast(null(), _TYPES.get(name, String()))).label(name) for name in _Answer._fields[1:]]
        return (
            select(literal(kind).label("kind"), *picked).select_from(cells).group_by(*([group] if by else []), *keys.values())
        )

    task = {"arch": own.arch, "chip": own.chip}
    by_outcome = {**task, "policy": own.policy, "status": own.status, "environment": own.label}
    return union_all(
        rows("steps", by_outcome, steps=func.sum(own.steps), rewarded=func.sum(own.rewarded)),
        rows("best", {**task, "shape": own.shape}, speedup=func.max(own.speedup)),
        rows("runs of a group", {}, steps=func.count(own.run.distinct())),
        select(literal("runs"), literal(""), *[null()] * 6, func.count(own.run.distinct()), null(), null()),
    )


def _listed(selected: StepFilter, empty: bool) -> ColumnElement[bool]:
    """The condition on runs: that of the selection and, unless `empty`, that one of their steps is selected."""
    has_step = exists(select(steps.c.run).where(steps.c.run == runs.c.key, step_conditions(selected)))
    return run_conditions(selected) & (true() if empty else has_step)


def _tally(counts: Sequence[_Answer], name: str) -> dict[str, int]:
    """Steps by the value of a field, most first."""
    found: Counter[str] = Counter()
    for one in counts:
        found[getattr(one, name)] += one.steps
    return dict(sorted(found.items(), key=lambda item: (-item[1], item[0])))


def _groups(members: dict[str, int], counts: Sequence[_Answer], best: Sequence[_Answer]) -> tuple[Group, ...]:
    own, own_best = defaultdict(list), defaultdict(list)
    for one in counts:
        own[one.group].append(one)
    for one in best:
        own_best[one.group].append(one)
    return tuple(
        Group(
            name=name,
            runs=members[name],
            steps=sum(one.steps for one in own[name]),
            measured=sum(one.steps for one in own[name] if one.status == MEASURED),
            withheld=sum(one.withheld for one in own[name]),
            speedups=_speedups(own_best[name]),
        )
        for name in sorted(members)
    )


def _speedups(best: Sequence[_Answer]) -> Speedups | None:
    found: dict[tuple[str, str, str], float] = {}
    for one in best:
        if one.speedup is not None:
            key = (one.shape, one.arch, one.chip)
            found[key] = max(one.speedup, found.get(key, 0.0))
    if not found:
        return None
    values = list(found.values())
    return Speedups(
        shapes=len(values),
        geometric_mean=math.exp(sum(map(math.log, values)) / len(values)),
        minimum=min(values),
        median=median(values),
        maximum=max(values),
        above_1=sum(value > 1 for value in values) / len(values),
    )
