"""Checks a whole store: hashes, frames, references, counts, and the columns that repeat what records hold.

Covered: every column, by a hash of the record to which it belongs, by comparison with that record, or as a reference.
Not covered: `purpose` and `generation` of dictionaries, which only choose among sound ones; the state of a campaign's queue;
the truth of what was recorded.
"""

from collections.abc import Callable, Iterator, Mapping
from typing import Any

from sqlalchemy import Connection, Row, Select, Table, func, select
from sqlalchemy.exc import SQLAlchemyError

from cudal2_agent.contract.base import digest
from cudal2_agent.contract.errors import StoreError
from cudal2_agent.contract.events import Emit, StoreProgress, ignore
from cudal2_agent.contract.records.baseline import TunedBaseline
from cudal2_agent.contract.records.campaign import ShapeResult
from cudal2_agent.contract.records.module_campaign import ModuleResult
from cudal2_agent.store import tables
from cudal2_agent.store.campaign_queue import read_task
from cudal2_agent.store.campaign_results import module_row, result_row, tuned_row
from cudal2_agent.store.packing import Packer, named
from cudal2_agent.store.plain_records import content_id, exchange_hash, figures, observation_hash, step_hash
from cudal2_agent.store.reader import PlainReader, unnamed
from cudal2_agent.store.store import Store
from cudal2_agent.store.tables import campaign_items, module_results, shape_results, tuned_baselines
from cudal2_agent.store.writer import run_columns

KINDS = frozenset({"candidate", "prompt", "chunk", "profile"})
_BATCH = 500
_UNREADABLE = (StoreError, SQLAlchemyError, LookupError, TypeError, ValueError, AttributeError)
_CHECKED = (tables.dictionaries, tables.contents, tables.observations, tables.runs, tables.steps, tables.exchanges)


def check_store(store: Store, emit: Emit = ignore) -> Iterator[str]:
    """The faults of a store, one line each, as they are found. It reads one consistent state and changes nothing."""
    with store.reading() as (connection, _):
        yield from _StoreCheck(connection, emit).all()


class _StoreCheck:
    def __init__(self, connection: Connection, emit: Emit) -> None:
        self._connection, self._emit = connection, emit
        self._packer = Packer()
        self._reader = PlainReader(connection, self._packer)
        self._done = self._total = 0

    def all(self) -> Iterator[str]:
        begin = [self._database, self._references, self._dictionary_order, self._observation_order]
        faults = 0
        for part in begin:
            for fault in self._guarded(part):
                faults += 1
                yield fault
        if faults:
            yield "the records were not checked; restore the store from a copy, or import what an export still holds"
            return
        self._total = sum(self._count(table) for table in _CHECKED)
        for part in (self._dictionaries, self._contents, self._observations, self._runs, self._steps, self._exchanges):
            yield from self._guarded(part)
        yield from self._guarded(self._missing)
        yield from self._guarded(self._campaigns)

    def _campaigns(self) -> Iterator[str]:
        yield from campaign_faults(self._connection)

    def _guarded(self, part: Callable[[], Iterator[str]]) -> Iterator[str]:
        """The faults of a part; that it cannot be read is one."""
        try:
            yield from part()
        except _UNREADABLE as exc:
            yield f"{part.__name__.strip('_').replace('_', ' ')} cannot be read: {_line(exc)}"

    def _database(self) -> Iterator[str]:
        """What the database says of itself. PostgreSQL keeps its own structure and references."""
        version = self._connection.execute(
            select(tables.meta.c.value).where(tables.meta.c.key == "schema")
        ).scalar_one_or_none()
        if version != tables.SCHEMA:
            yield f"cudal2_meta: schema is {version}, not {tables.SCHEMA}"
        if self._connection.dialect.name == "sqlite":
            for (said,) in self._connection.exec_driver_sql("PRAGMA integrity_check"):
                if said != "ok":
                    yield f"SQLite: {_line(said)}"

    def _references(self) -> Iterator[str]:
        if self._connection.dialect.name == "sqlite":
            for table, row, parent, _ in self._connection.exec_driver_sql("PRAGMA foreign_key_check"):
                yield f"{table}: row {row} refers to a row of {parent} that does not exist"

    def _dictionary_order(self) -> Iterator[str]:
        own = tables.dictionaries.c
        for key in self._connection.execute(select(own.key).where(own.base >= own.key)).scalars():
            yield f"dictionary {key}: it rests on one that came later"

    def _observation_order(self) -> Iterator[str]:
        own, links = tables.observations.c, tables.observation_contents.c
        for key in self._connection.execute(select(own.key).where(own.parent >= own.key)).scalars():
            yield f"observation {key}: it continues one that came later"
        grouped = select(links.observation).group_by(links.observation)
        gaps = grouped.having((func.min(links.place) != 0) | (func.max(links.place) != func.count() - 1))
        for key in self._connection.execute(gaps).scalars():
            yield f"observation {key}: the places of its contents have a gap"

    def _dictionaries(self) -> Iterator[str]:
        yield from self._each(
            select(tables.dictionaries.c.key), "dictionary", lambda row: self._packer.check(self._connection, row.key)
        )

    def _contents(self) -> Iterator[str]:
        def check(row: Row[Any]) -> str | None:
            if row.kind not in KINDS:
                return f"its kind is {row.kind!r}"
            return _compared({"hash": row.hash}, {"hash": named(content_id(row.kind, self._unpack(row)))})

        yield from self._each(select(tables.contents), "content", check)

    def _observations(self) -> Iterator[str]:
        def check(row: Row[Any]) -> str | None:
            return _compared({"hash": row.hash}, {"hash": named(observation_hash(self._reader.observation(row.key)))})

        own = tables.observations.c
        yield from self._each(select(own.key, own.hash), "observation", check)

    def _runs(self) -> Iterator[str]:
        def check(row: Row[Any]) -> str | None:
            return _compared(row._mapping, run_columns(self._unpack(row)))

        yield from self._each(select(tables.runs), "run", check)

    def _steps(self) -> Iterator[str]:
        own, record, candidate, profile = (
            tables.steps,
            tables.step_records,
            tables.contents.alias("candidates"),
            tables.contents.alias("profiles"),
        )
        query = (
            select(own, record.c.hash, record.c.dictionary, record.c.data, tables.runs.c.run_id, tables.environments.c.label)
            .add_columns(tables.observations.c.hash.label("observation_hash"))
            .add_columns(candidate.c.hash.label("candidate_hash"), candidate.c.kind.label("candidate_kind"))
            .add_columns(profile.c.hash.label("profile_hash"), profile.c.kind.label("profile_kind"))
            .select_from(own)
            .join(record, record.c.step == own.c.key)
            .join(tables.runs, tables.runs.c.key == own.c.run)
            .join(tables.observations, tables.observations.c.key == own.c.observation)
            .join(candidate, candidate.c.key == own.c.candidate)
            .outerjoin(profile, profile.c.key == own.c.profile)
            .outerjoin(tables.environments, tables.environments.c.key == own.c.environment)
        )
        yield from self._each(query, "step", self._step)

    def _step(self, row: Row[Any]) -> str | None:
        if row.candidate_kind != "candidate" or row.profile_kind not in (None, "profile"):
            return "its candidate or its profile is of another kind"
        rest = self._unpack(row)
        columns = {
            "run_id": row.run_id,
            "index": row.index,
            "round": row.round,
            "observation_id": unnamed(row.observation_hash),
        }
        profile = unnamed(row.profile_hash) if row.profile_hash is not None else None
        found = figures(rest["evaluation"])
        expected = {
            "hash": named(step_hash(columns, unnamed(row.candidate_hash), profile, rest)),
            "status": rest["evaluation"]["status"],
            "reward": rest["reward"],
            "time_us": found.time_us,
            "speedup": found.speedup,
            "label": found.environment,
        }
        return _compared(row._mapping, expected)

    def _exchanges(self) -> Iterator[str]:
        own = tables.exchanges
        query = (
            select(own, tables.runs.c.run_id, tables.observations.c.hash.label("observation_hash"))
            .add_columns(tables.contents.c.hash.label("prompt_hash"), tables.contents.c.kind)
            .select_from(own)
            .join(tables.runs, tables.runs.c.key == own.c.run)
            .join(tables.contents, tables.contents.c.key == own.c.prompt)
            .outerjoin(tables.observations, tables.observations.c.key == own.c.observation)
        )

        def check(row: Row[Any]) -> str | None:
            if row.kind != "prompt":
                return "its prompt is of another kind"
            rest = self._unpack(row)
            place = (row.round, row.sample, row.turn)
            hash_ = named(exchange_hash(row.run_id, place, unnamed(row.prompt_hash), rest))
            if row.observation_hash not in (None, named(rest["observation_id"])):
                return "it refers to another observation than its record"
            return _compared(row._mapping, {"hash": hash_, "status": rest["status"]})

        yield from self._each(query, "exchange", check)

    def _missing(self) -> Iterator[str]:
        """Steps without a record: a join leaves them out."""
        records = select(tables.step_records.c.step)
        for key in self._connection.execute(select(tables.steps.c.key).where(tables.steps.c.key.not_in(records))).scalars():
            yield f"step {key}: it has no record"

    def _each(self, query: Select[Any], what: str, check: Callable[[Row[Any]], str | None]) -> Iterator[str]:
        """Rows in the order of their keys, so that neighbours share what was read."""
        ordered = query.order_by(query.selected_columns["key"]).execution_options(yield_per=_BATCH)
        for row in self._connection.execute(ordered):
            try:
                fault = check(row)
            except _UNREADABLE as exc:
                fault = f"it cannot be read: {_line(exc)}"
            if fault is not None:
                yield f"{what} {row.key}{_named(row)}: {fault}"
            self._done += 1
            if self._done % _BATCH == 0 or self._done == self._total:
                self._emit(StoreProgress(stage="verify", done=self._done, total=self._total))

    def _unpack(self, row: Row[Any]) -> Any:
        return self._packer.unpack(self._connection, row.dictionary, row.data)

    def _count(self, table: Table) -> int:
        return self._connection.execute(select(func.count()).select_from(table)).scalar_one()


def _compared(row: Mapping[Any, Any], expected: Mapping[str, Any]) -> str | None:
    """The first column that differs from what the record says."""
    for name, value in expected.items():
        if row[name] != value:
            return f"its {name} is {row[name]!r}, its record says {value!r}"
    return None


def _named(row: Row[Any]) -> str:
    fields = row._mapping
    if "index" in fields:
        return f" (step {fields['index']} of run {fields['run_id']})"
    return f" (run {fields['run_id']})" if "run_id" in fields else ""


def _line(said: object) -> str:
    return " ".join(str(getattr(said, "orig", None) or said).split()) or type(said).__name__


Expected = Callable[[str], Mapping[str, Any]]


def campaign_faults(connection: Connection) -> Iterator[str]:
    """One line each."""
    yield from _faults(connection, shape_results, "result", lambda text: result_row(ShapeResult.model_validate_json(text)))
    yield from _faults(connection, tuned_baselines, "baseline", lambda text: tuned_row(TunedBaseline.model_validate_json(text)))
    yield from _faults(connection, module_results, "module", lambda text: module_row(ModuleResult.model_validate_json(text)))
    yield from _faults(connection, campaign_items, "item", lambda text: {"task": read_task(text).id})


def _faults(connection: Connection, table: Table, what: str, expected: Expected) -> Iterator[str]:
    for row in connection.execute(select(table).order_by(table.c.key)):
        if fault := _fault(row, expected):
            yield f"{what} {row.key}: {fault}"


def _fault(row: Row[Any], expected: Expected) -> str:
    held = row._mapping
    if "hash" in held and held["hash"] != named(digest(row.record)):
        return "its record does not have its hash"
    try:
        values = expected(row.record)
    except ValueError as exc:
        return f"it cannot be read: {str(exc).splitlines()[0]}"
    # A record of another version may be written in other words now; its hash says that it is whole.
    differing = [name for name, value in values.items() if name not in ("record", "hash") and held[name] != value]
    return f"its {differing[0]} is {held[differing[0]]!r}, its record says {values[differing[0]]!r}" if differing else ""
