"""Counts over the store, by SQL alone: no record is unpacked."""

import math
from collections import Counter, defaultdict
from collections.abc import Iterator, Sequence
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
    literal_column,
    null,
    select,
    true,
    union_all,
)
from sqlalchemy.types import TypeEngine

from cudal2_agent.contract.base import Record
from cudal2_agent.store.filters import ALL_STEPS, StepFilter, run_conditions, step_conditions
from cudal2_agent.store.store import Store
from cudal2_agent.store.tables import environments, runs, steps

By = Literal["environment", "policy", "shape", "day"]
NO_ENVIRONMENT = "not measured"
MEASURED = "measured"
_BATCH = 1000
_DAY_CHARS = 10  # of an ISO date
_TYPES: dict[str, TypeEngine[Any]] = {"steps": Integer(), "rewarded": Integer(), "runs": Integer(), "speedup": Float()}
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
    counts = [answer for answer in answers if answer.kind == "outcomes"]
    shapes = [answer for answer in answers if answer.kind == "shapes"]
    return StoreStatistics(
        runs=sum(answer.runs for answer in answers if answer.kind == "runs"),
        steps=sum(answer.steps for answer in counts),
        shapes=len({answer.shape for answer in shapes}),
        withheld=sum(answer.withheld for answer in counts),
        outcomes=_tally(counts, "status"),
        policies=_tally(shapes, "policy"),
        archs=_tally(shapes, "arch"),
        chips=_tally(shapes, "chip"),
        environments=_tally([answer for answer in counts if answer.environment], "environment"),
        speedups=_speedups(shapes),
        store_bytes=size,
        bytes_per_step=size / total if total else None,
        by=by,
        groups=_groups(counts, shapes) if by else (),
    )


def store_bytes(connection: Connection) -> int:
    """The size of the database."""
    if connection.dialect.name == "sqlite":
        pages, page_bytes = (connection.exec_driver_sql(f"PRAGMA {name}").scalar_one() for name in ("page_count", "page_size"))
        return int(pages) * int(page_bytes)
    return int(connection.execute(select(func.pg_database_size(func.current_database()))).scalar_one())


class _Answer(NamedTuple):
    """A row of the one query. `kind`: what it counts; each fills other fields."""

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
    runs: int
    speedup: float | None

    @property
    def withheld(self) -> int:
        return self.steps - self.rewarded if self.status == MEASURED else 0


def _questions(selected: StepFilter, by: By | None) -> Any:
    """One query, so that the steps are read once, over one index. It joins to runs what is grouped by run already.

    Kind `outcomes`: steps by outcome and environment. Kind `shapes`: steps, runs and the best speedup by task and policy.
    Kind `runs`: the number of runs.
    """
    part = _grouped_steps(selected)
    return union_all(
        _outcome_rows(part, by),
        _shape_rows(part, by),
        _rows("runs", runs=select(func.count(part.c.run.distinct())).scalar_subquery()),
    )


def _grouped_steps(selected: StepFilter) -> CTE:
    """Steps by run, outcome and environment."""
    own = steps.c
    counts = select(own.run, own.status, own.environment, func.count().label("steps"), func.count(own.reward).label("rewarded"))
    counts = counts.add_columns(func.max(own.speedup).label("speedup")).where(step_conditions(selected))
    if selected != ALL_STEPS:
        counts = counts.where(own.run.in_(select(runs.c.key).where(run_conditions(selected))))
    return counts.group_by(own.run, own.status, own.environment).cte("part")


def _outcome_rows(part: CTE, by: By | None) -> Select[Any]:
    group = _run_group(by)
    own = part.c
    counts = select(group.label("group"), own.status, own.environment, func.sum(own.steps).label("steps"))
    counts = counts.add_columns(func.sum(own.rewarded).label("rewarded"))
    counts = counts.select_from(part.join(runs, runs.c.key == own.run) if by not in (None, "environment") else part)
    found = counts.group_by(literal_column("1"), own.status, own.environment).subquery()
    named = environments.c.label
    return _rows(
        "outcomes",
        group=func.coalesce(named, NO_ENVIRONMENT) if by == "environment" else found.c.group,
        status=found.c.status,
        environment=named,
        steps=found.c.steps,
        rewarded=found.c.rewarded,
    ).select_from(found.outerjoin(environments, environments.c.key == found.c.environment))


def _shape_rows(part: CTE, by: By | None) -> Select[Any]:
    own, run = part.c, runs.c
    apart = own.environment if by == "environment" else null()
    keys = [own.run, *([own.environment] if by == "environment" else [])]
    counts = select(
        own.run, apart.label("environment"), func.sum(own.steps).label("steps"), func.max(own.speedup).label("speedup")
    )
    found = counts.group_by(*keys).subquery()
    joined = found.join(runs, run.key == found.c.run)
    group = _run_group(by)
    if by == "environment":
        joined = joined.outerjoin(environments, environments.c.key == found.c.environment)
        group = func.coalesce(environments.c.label, NO_ENVIRONMENT)
    columns = {"group": group, "policy": run.policy, "shape": run.shape, "arch": run.arch, "chip": run.chip}
    sums = {"steps": func.sum(found.c.steps), "runs": func.count(), "speedup": func.max(found.c.speedup)}
    keys = [literal_column(str(2 + place)) for place in range(len(columns))]
    return _rows("shapes", **columns, **sums).select_from(joined).group_by(*keys)


def _run_group(by: By | None) -> ColumnElement[str]:
    """What a run is grouped by; empty where that is nothing, or not a matter of runs."""
    day = func.substr(runs.c.created_at, 1, _DAY_CHARS)
    columns: dict[str | None, ColumnElement[str]] = {"policy": runs.c.policy, "shape": runs.c.shape, "day": day}
    return columns.get(by, cast("", String()))


def _rows(kind: str, **columns: Any) -> Select[Any]:
    """A query whose columns are the fields of `_Answer`; those that are not given are empty."""
    picked = [columns.get(name, cast(null(), _TYPES.get(name, String()))).label(name) for name in _Answer._fields[1:]]
    return select(literal(kind).label("kind"), *picked)


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


def _groups(counts: Sequence[_Answer], shapes: Sequence[_Answer]) -> tuple[Group, ...]:
    own, own_shapes = defaultdict(list), defaultdict(list)
    for one in counts:
        own[one.group].append(one)
    for one in shapes:
        own_shapes[one.group].append(one)
    return tuple(
        Group(
            name=name,
            runs=sum(one.runs for one in own_shapes[name]),
            steps=sum(one.steps for one in own[name]),
            measured=sum(one.steps for one in own[name] if one.status == MEASURED),
            withheld=sum(one.withheld for one in own[name]),
            speedups=_speedups(own_shapes[name]),
        )
        for name in sorted(own)
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
