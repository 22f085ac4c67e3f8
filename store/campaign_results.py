"""Results of campaigns: rows of shapes and of modules, recorded and filtered; tuned baselines.

The row of a shape changes once its winner is proved.
Of a task and environment the last tuned baseline is kept.
"""

import time
from typing import Any, NamedTuple

from sqlalchemy import ColumnElement, Connection, and_, insert, or_, select, update

from cudal2_agent.contract.base import Record, digest
from cudal2_agent.contract.records.baseline import TunedBaseline
from cudal2_agent.contract.records.campaign import ShapeResult
from cudal2_agent.contract.records.module_campaign import ModuleResult
from cudal2_agent.contract.records.task import Arch, GemmTask, Layout, TimingMode
from cudal2_agent.store.filters import one_of, sortable
from cudal2_agent.store.packing import named
from cudal2_agent.store.tables import campaigns, module_results, shape_results, tuned_baselines

PROOF_LEASE_S = 900.0  # longer than the proof of one winner takes


class ResultFilter(Record):
    """Conditions on results. All that are given hold at once; one of several values is enough. Empty selects all.

    `campaigns`: names. `environments`: values of `Environment.key`.
    """

    campaigns: tuple[str, ...] = ()
    modes: tuple[TimingMode, ...] = ()
    layouts: tuple[Layout, ...] = ()
    environments: tuple[str, ...] = ()
    archs: tuple[Arch, ...] = ()


ALL_RESULTS = ResultFilter()


class StoredResult(NamedTuple):
    """A result with the name of its campaign and its key in the store."""

    key: int
    campaign: str
    result: ShapeResult


def read_results(connection: Connection, wanted: ResultFilter = ALL_RESULTS, after: int = 0) -> list[StoredResult]:
    """The wanted results with a key above `after`, by shape, layout and mode; of one task, the oldest first."""
    own = shape_results.c
    query = (
        select(own.key, campaigns.c.name, own.record)
        .join_from(shape_results, campaigns, campaigns.c.key == own.campaign)
        .where(_conditions(wanted), own.key > after)
        .order_by(own.m, own.n, own.k, own.layout, own.mode, own.finished_at)
    )
    return [StoredResult(key, name, ShapeResult.model_validate_json(text)) for key, name, text in connection.execute(query)]


def add_result(connection: Connection, campaign: int, result: ShapeResult) -> bool:
    """Record a result; whether it was new. Of one that is there, a verdict on its winner and an explanation are taken over."""
    row = result_row(result)
    own = shape_results.c
    known = connection.execute(
        select(own.key, own.record).where(own.task == row["task"], own.finished_at == row["finished_at"])
    ).one_or_none()
    if known is None:
        connection.execute(insert(shape_results).values(campaign=campaign, **row))
    elif (merged := _merged(ShapeResult.model_validate_json(known.record), result)) is not None:
        connection.execute(update(shape_results).where(own.key == known.key).values(**result_row(merged)))
    return known is None


def _merged(known: ShapeResult, told: ShapeResult) -> ShapeResult | None:
    """What a row becomes by the same row from elsewhere; None where it stays."""
    newer, older = (told, known) if told.witness and not known.witness else (known, told)
    if newer.explained is None and newer.best == older.best:
        newer = newer.model_copy(update={"explained": older.explained})
    return newer if newer != known else None


def claim_unproved(connection: Connection, wanted: ResultFilter) -> StoredResult | None:
    """A result whose winner nobody has proved or is proving, the fastest first; it is the caller's for PROOF_LEASE_S."""
    own, now_s = shape_results.c, time.time()
    free = or_(own.proof_until.is_(None), own.proof_until < now_s)
    query = (
        select(own.key, campaigns.c.name, own.record)
        .join_from(shape_results, campaigns, campaigns.c.key == own.campaign)
        .where(_conditions(wanted), own.witness == "", own.ratio.is_not(None), free)
        .order_by(own.ratio.desc(), own.key)
        .limit(1)
    )
    row = connection.execute(query).one_or_none()
    if row is None:
        return None
    connection.execute(update(shape_results).where(own.key == row.key).values(proof_until=now_s + PROOF_LEASE_S))
    return StoredResult(row.key, row.name, ShapeResult.model_validate_json(row.record))


def replace_result(connection: Connection, key: int, result: ShapeResult) -> None:
    """The same result after a proof."""
    row = {**result_row(result), "proof_until": None}
    connection.execute(update(shape_results).where(shape_results.c.key == key).values(**row))


def result_row(result: ShapeResult) -> dict[str, Any]:
    task, record = result.task, result.model_dump_json()
    return {
        "task": task.id,
        **{name: getattr(task, name) for name in ("m", "n", "k")},
        **{name: getattr(task, name).value for name in ("layout", "mode", "element", "accumulate")},
        "arch": task.arch.value,
        "environment": result.environment,
        "ratio": result.best.speedup.ratio if result.best else None,
        "ratio_without": result.best_without.speedup.ratio if result.best_without else None,
        "witness": result.witness.partition(":")[0][:16],
        "finished_at": sortable(result.finished_at),
        "hash": named(digest(record)),
        "record": record,
    }


def _conditions(wanted: ResultFilter) -> ColumnElement[bool]:
    own = shape_results.c
    return and_(
        one_of(campaigns.c.name, wanted.campaigns),
        one_of(own.mode, [mode.value for mode in wanted.modes]),
        one_of(own.layout, [layout.value for layout in wanted.layouts]),
        one_of(own.arch, [arch.value for arch in wanted.archs]),
        one_of(own.environment, wanted.environments),
    )


class StoredModule(NamedTuple):
    """A row with the name of its campaign and its key in the store."""

    key: int
    campaign: str
    result: ModuleResult


def read_modules(connection: Connection, wanted: ResultFilter = ALL_RESULTS, after: int = 0) -> list[StoredModule]:
    """The wanted rows with a key above `after`, by name; of one task, the oldest first. A filter by layout selects none."""
    if wanted.layouts:
        return []
    conditions = and_(
        one_of(campaigns.c.name, wanted.campaigns),
        one_of(module_results.c.mode, [mode.value for mode in wanted.modes]),
        one_of(module_results.c.arch, [arch.value for arch in wanted.archs]),
        one_of(module_results.c.environment, wanted.environments),
    )
    query = (
        select(module_results.c.key, campaigns.c.name, module_results.c.record)
        .join_from(module_results, campaigns, campaigns.c.key == module_results.c.campaign)
        .where(conditions, module_results.c.key > after)
        .order_by(module_results.c.name, module_results.c.finished_at)
    )
    return [StoredModule(key, name, ModuleResult.model_validate_json(text)) for key, name, text in connection.execute(query)]


def add_module(connection: Connection, campaign: int, result: ModuleResult) -> bool:
    """Record a row; whether it was new."""
    row = module_row(result)
    same = select(module_results.c.key).where(
        module_results.c.task == row["task"], module_results.c.finished_at == row["finished_at"]
    )
    if connection.execute(same).first() is not None:
        return False
    connection.execute(insert(module_results).values(campaign=campaign, **row))
    return True


def module_row(result: ModuleResult) -> dict[str, Any]:
    task, record = result.task, result.model_dump_json()
    return {
        "task": task.id,
        "name": task.name,
        "mode": task.mode.value,
        "arch": task.arch.value,
        "environment": result.environment,
        "status": result.status,
        "ratio": result.speedup.ratio if result.speedup else None,
        "finished_at": sortable(result.finished_at),
        "hash": named(digest(record)),
        "record": record,
    }


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
    record = baseline.model_dump_json()
    return {"task": baseline.task.id, "environment": baseline.environment, "hash": named(digest(record)), "record": record}
