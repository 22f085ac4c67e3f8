"""The queue of a campaign: tasks that workers of several processes and machines claim, finish and hand back.

A claim is a lease. The worker renews it while it works; once it ran out, the item is free again. A result and the end of its
item are one transaction, so that no finished task is lost or repeated. Clocks of several machines must agree within seconds.
"""

import random
import time
from collections.abc import Iterable, Mapping
from datetime import UTC, datetime
from typing import Any, NamedTuple

from pydantic import TypeAdapter
from sqlalchemy import Connection, and_, bindparam, case, delete, func, insert, or_, select, update

from cudal2_agent.contract.base import Record
from cudal2_agent.contract.errors import UsageError
from cudal2_agent.contract.records.module_campaign import AskedModule, CampaignResult, CampaignTask, ModuleResult
from cudal2_agent.contract.settings.run_settings import RunSettings
from cudal2_agent.store.campaign_results import (
    ResultFilter,
    StoredModule,
    StoredResult,
    add_module,
    add_result,
    read_modules,
    read_results,
)
from cudal2_agent.store.filters import sortable
from cudal2_agent.store.store import Store
from cudal2_agent.store.tables import campaign_items, campaigns, module_results, shape_results

LEASE_S = 30.0
MAX_ATTEMPTS = 3
_OWN = campaign_items.c
_TASK: TypeAdapter[CampaignTask] = TypeAdapter(CampaignTask)


class CampaignRecord(Record):
    """A campaign in the store. `settings`: those of its runs."""

    name: str
    created_at: datetime
    settings: RunSettings


class QueueCounts(Record):
    """Items by status. `failed`: those that are not tried again."""

    pending: int = 0
    running: int = 0
    done: int = 0
    failed: int = 0

    @property
    def left(self) -> int:
        return self.pending + self.running

    @property
    def total(self) -> int:
        return self.left + self.done + self.failed


class Claim(NamedTuple):
    """An item that a worker holds."""

    item: int
    worker: str
    task: CampaignTask
    attempt: int


class FailedItem(NamedTuple):
    """A task without a result, and why."""

    task: CampaignTask
    attempts: int
    reason: str


def campaign_names(store: Store) -> list[str]:
    """Oldest first."""
    with store.reading() as (connection, _):
        return list(connection.execute(select(campaigns.c.name).order_by(campaigns.c.created_at)).scalars())


class CampaignQueue:
    """The queue of one campaign. Safe to use from several threads and processes."""

    def __init__(self, store: Store, name: str) -> None:
        self._store, self.name = store, name

    def open(self, settings: RunSettings) -> CampaignRecord:
        """Create the campaign, or resume it under these settings."""
        with self._store.writing() as connection:
            key = self._find(connection)
            record = CampaignRecord(name=self.name, created_at=datetime.now(UTC), settings=settings)
            if key is not None:
                text = connection.execute(select(campaigns.c.record).where(campaigns.c.key == key)).scalar_one()
                known = CampaignRecord.model_validate_json(text)
                record = record.model_copy(update={"created_at": known.created_at})
            row = {"name": self.name, "created_at": sortable(record.created_at), "record": record.model_dump_json()}
            if key is None:
                connection.execute(insert(campaigns).values(**row))
            else:
                connection.execute(update(campaigns).where(campaigns.c.key == key).values(**row))
        return record

    def record(self) -> CampaignRecord:
        """Raises: UsageError where there is no such campaign."""
        with self._store.reading() as (connection, _):
            text = connection.execute(select(campaigns.c.record).where(campaigns.c.name == self.name)).scalar_one_or_none()
        if text is None:
            known = ", ".join(campaign_names(self._store)) or "none yet"
            raise UsageError(f"there is no campaign {self.name!r} (there are: {known}); start it with `campaign run --name`")
        return CampaignRecord.model_validate_json(text)

    def add(self, tasks: Mapping[CampaignTask, float], seed: int) -> int:
        """Add tasks with their weights in a random order that the seed decides; those known keep their place.

        A task of which the campaign has a result is done. Returns the number of new items.
        """
        with self._store.writing() as connection:
            campaign = self._key(connection)
            known = set(connection.execute(select(_OWN.task).where(_OWN.campaign == campaign)).scalars())
            done = {
                task
                for table in (shape_results, module_results)
                for task in connection.execute(select(table.c.task).where(table.c.campaign == campaign)).scalars()
            }
            rows = [_item(campaign, task, weight, seed, done) for task, weight in tasks.items() if task.id not in known]
            if rows:
                connection.execute(insert(campaign_items), rows)
        return len(rows)

    def replace(self, tasks: Iterable[AskedModule]) -> int:
        """Take out what is not done of the modules that are asked with another text now; how many these are."""
        wanted = {task.place: task.id for task in tasks}
        if not wanted:
            return 0
        with self._store.writing() as connection:
            left = (_OWN.campaign == self._key(connection), _OWN.status.in_(("pending", "failed")))
            held = [(key, read_task(text)) for key, text in connection.execute(select(_OWN.key, _OWN.record).where(*left))]
            old = [key for key, task in held if isinstance(task, AskedModule) and wanted.get(task.place, task.id) != task.id]
            for key in old:
                connection.execute(delete(campaign_items).where(_OWN.key == key))
        return len(old)

    def claim(self, worker: str, now_s: float | None = None) -> Claim | None:
        """The next task, which is this worker's for LEASE_S; None where none is free now.

        New tasks come first, then those that failed or whose worker was lost, each at most MAX_ATTEMPTS times in all. The last
        attempt of a task that failed waits until no other one is searched: they may have taken the memory that it lacked.
        """
        now_s = time.time() if now_s is None else now_s
        with self._store.writing() as connection:
            campaign = self._key(connection)
            self._give_up_lost(connection, campaign, now_s)
            busy = select(_OWN.key).where(_OWN.campaign == campaign, _OWN.status == "running", _OWN.lease_until >= now_s)
            most = MAX_ATTEMPTS - 1 if connection.execute(busy.limit(1)).first() else MAX_ATTEMPTS
            free = or_(
                _OWN.status == "pending",
                and_(_OWN.status == "failed", _OWN.attempts < most),
                and_(_OWN.status == "running", _OWN.lease_until < now_s),
            )
            new_first = case((_OWN.status == "pending", 0), (_OWN.status == "running", 1), else_=2)
            query = select(_OWN.key, _OWN.record, _OWN.attempts).where(_OWN.campaign == campaign, free)
            row = connection.execute(query.order_by(new_first, _OWN.attempts, _OWN.place).limit(1)).one_or_none()
            if row is None:
                return None
            held = {"status": "running", "worker": worker, "lease_until": now_s + LEASE_S, "attempts": row.attempts + 1}
            connection.execute(update(campaign_items).where(_OWN.key == row.key).values(**held))
        return Claim(row.key, worker, read_task(row.record), row.attempts + 1)

    def renew(self, claim: Claim) -> bool:
        """Whether the item is still this worker's; then for another LEASE_S."""
        with self._store.writing() as connection:
            return _change(connection, claim, lease_until=time.time() + LEASE_S)

    def finish(self, claim: Claim, result: CampaignResult) -> bool:
        """Record the result and end the item, or nothing where the item was lost to another worker."""
        with self._store.writing() as connection:
            ended = _change(connection, claim, status="done", worker=None, lease_until=None, reason="")
            if ended:
                _add(connection, self._key(connection), result)
            return ended

    def fail(self, claim: Claim, reason: str, *, for_good: bool = False) -> None:
        """The task failed. `for_good`: another attempt would fail as well."""
        attempts = MAX_ATTEMPTS if for_good else claim.attempt
        with self._store.writing() as connection:
            _change(connection, claim, status="failed", worker=None, lease_until=None, reason=reason, attempts=attempts)

    def hand_back(self, claim: Claim) -> None:
        """The task was interrupted; this attempt does not count."""
        with self._store.writing() as connection:
            _change(connection, claim, status="pending", worker=None, lease_until=None, attempts=claim.attempt - 1)

    def release(self, worker: str, reason: str, *, counts: bool = True) -> int:
        """Free what a lost worker held; the number of items. `counts`: the attempt does: the task may have ended the worker."""
        free = {"worker": None, "lease_until": None, "reason": reason}
        values = {**free, "status": "failed"} if counts else {**free, "status": "pending", "attempts": _OWN.attempts - 1}
        with self._store.writing() as connection:
            held = (_OWN.campaign == self._key(connection), _OWN.worker == worker, _OWN.status == "running")
            return connection.execute(update(campaign_items).where(*held).values(**values)).rowcount

    def counts(self) -> QueueCounts:
        """Items that failed and will be tried again count as pending."""
        again = and_(_OWN.status == "failed", _OWN.attempts < MAX_ATTEMPTS)
        status = case((again, "pending"), else_=_OWN.status)
        with self._store.reading() as (connection, _):
            query = select(status, func.count()).where(_OWN.campaign == self._key(connection)).group_by(status)
            return QueueCounts(**{row[0]: row[1] for row in connection.execute(query)})

    def holds_modules(self) -> bool:
        """Whether its tasks are modules: a campaign has one kind."""
        with self._store.reading() as (connection, _):
            query = select(_OWN.record).where(_OWN.campaign == self._key(connection)).limit(1)
            first = connection.execute(query).scalar_one_or_none()
        return first is not None and isinstance(read_task(first), AskedModule)

    def running(self) -> dict[str, CampaignTask]:
        """The tasks that are being searched, by worker."""
        with self._store.reading() as (connection, _):
            held = (_OWN.campaign == self._key(connection), _OWN.status == "running", _OWN.lease_until >= time.time())
            found = connection.execute(select(_OWN.worker, _OWN.record).where(*held)).all()
        return {worker: read_task(text) for worker, text in found}

    def failed(self) -> list[FailedItem]:
        """The tasks that are not tried again."""
        with self._store.reading() as (connection, _):
            query = select(_OWN.record, _OWN.attempts, _OWN.reason).where(
                _OWN.campaign == self._key(connection), _OWN.status == "failed", _OWN.attempts >= MAX_ATTEMPTS
            )
            found = connection.execute(query.order_by(_OWN.place)).all()
        return [FailedItem(read_task(text), attempts, reason) for text, attempts, reason in found]

    def results(self, after: int = 0) -> list[StoredResult]:
        """Results with a key above `after`."""
        with self._store.reading() as (connection, _):
            return read_results(connection, ResultFilter(campaigns=(self.name,)), after)

    def modules(self, after: int = 0) -> list[StoredModule]:
        """Rows of modules with a key above `after`."""
        with self._store.reading() as (connection, _):
            return read_modules(connection, ResultFilter(campaigns=(self.name,)), after)

    def unproved(self) -> int:
        """The number of winners without a verdict of the second witness."""
        own = shape_results.c
        with self._store.reading() as (connection, _):
            open_ = (own.campaign == self._key(connection), own.witness == "", own.ratio.is_not(None))
            return connection.execute(select(func.count()).select_from(shape_results).where(*open_)).scalar_one()

    def take_over(self, results: Iterable[CampaignResult]) -> int:
        """Add results of another store; items of their tasks are done. Returns the number of new results."""
        with self._store.writing() as connection:
            campaign, added = self._key(connection), 0
            ended = {"status": "done", "worker": None, "lease_until": None, "reason": ""}
            item = update(campaign_items).where(_OWN.campaign == campaign, _OWN.task == bindparam("of")).values(**ended)
            for result in results:
                added += _add(connection, campaign, result)
                connection.execute(item, {"of": result.task.id})
        return added

    def _find(self, connection: Connection) -> int | None:
        return connection.execute(select(campaigns.c.key).where(campaigns.c.name == self.name)).scalar_one_or_none()

    def _key(self, connection: Connection) -> int:
        key = self._find(connection)
        if key is None:
            raise UsageError(f"there is no campaign {self.name!r} in this store")
        return key

    def _give_up_lost(self, connection: Connection, campaign: int, now_s: float) -> None:
        """An item that lost its workers MAX_ATTEMPTS times has failed."""
        lost = (_OWN.campaign == campaign, _OWN.status == "running", _OWN.lease_until < now_s, _OWN.attempts >= MAX_ATTEMPTS)
        values = {"status": "failed", "worker": None, "lease_until": None, "reason": "its workers were lost"}
        connection.execute(update(campaign_items).where(*lost).values(**values))


def read_task(text: str) -> CampaignTask:
    """The task in the record of an item. Raises: ValueError."""
    found: CampaignTask = _TASK.validate_json(text)
    return found


def _add(connection: Connection, campaign: int, result: CampaignResult) -> bool:
    if isinstance(result, ModuleResult):
        return add_module(connection, campaign, result)
    return add_result(connection, campaign, result)


def _item(campaign: int, task: CampaignTask, weight: float, seed: int, done: set[str]) -> dict[str, Any]:
    return {
        "campaign": campaign,
        "task": task.id,
        "record": task.model_dump_json(),
        "weight": weight,
        "place": random.Random(f"{seed} {task.id}").random(),
        "status": "done" if task.id in done else "pending",
        "attempts": 0,
        "reason": "",
    }


def _change(connection: Connection, claim: Claim, **values: Any) -> bool:
    """Change an item that the worker holds; False where it holds it no longer."""
    own = (_OWN.key == claim.item, _OWN.worker == claim.worker, _OWN.status == "running", _OWN.attempts == claim.attempt)
    return connection.execute(update(campaign_items).where(*own).values(**values)).rowcount == 1
