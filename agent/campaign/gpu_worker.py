"""The process of one GPU: it locks the device, opens the sandbox and works off the queue.

`work` claims a task, searches, records the result, and resumes until nothing is left or time is up.
"""

import logging
import os
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from typing import Protocol

from filelock import FileLock, Timeout

from cudal2_agent.agent.campaign.campaign_process import Doing, Tell, WorkerOrder, report_job, worker_name
from cudal2_agent.agent.campaign.shape_search import open_search
from cudal2_agent.agent.campaign.watching import leaves_time
from cudal2_agent.agent.wiring.host_use import HostMeter
from cudal2_agent.contract.errors import Cudal2Error, StoreError, UsageError, WorkerError
from cudal2_agent.contract.events import Event, StageStarted, StepFinished
from cudal2_agent.contract.file_system import require_local
from cudal2_agent.contract.records.module_campaign import CampaignResult, CampaignTask
from cudal2_agent.contract.settings.settings import Settings
from cudal2_agent.processes.child import ParentLine
from cudal2_agent.store.campaign_queue import LEASE_S, CampaignQueue, Claim
from cudal2_agent.store.store import open_store

IDLE_S = 0.5  # between two looks at a queue in which others hold what is left
_REASON_CHARS = 300
logger = logging.getLogger(__name__)


class Searches(Protocol):
    def search(self, task: CampaignTask) -> CampaignResult: ...

    def close(self) -> None:
        """Give back the memory of the GPU; the next search takes it again. Idempotent."""


# Called when a task begins (None) and when it ended with a result.
OnTask = Callable[[CampaignTask, CampaignResult | None], None]


def work(queue: CampaignQueue, searches: Searches, worker: str, on_task: OnTask, deadline_s: float | None = None) -> None:
    """Work off the queue until no task is left, or until the deadline leaves no time for another one.

    Raises: faults of this machine or of the store, after the task was marked failed; the next process goes on after it.
    KeyboardInterrupt, after the task was handed back.
    """
    took_s = list[float]()
    while leaves_time(deadline_s, took_s):
        claim = queue.claim(worker)
        if claim is not None:
            began_s = time.monotonic()
            work_on(queue, searches, claim, on_task)
            took_s.append(time.monotonic() - began_s)
        elif queue.counts().left:
            searches.close()  # the last attempt of a large task needs the memory of the GPU
            time.sleep(IDLE_S)  # another worker may fail, or be lost
        else:
            return


def work_on(queue: CampaignQueue, searches: Searches, claim: Claim, on_task: OnTask) -> None:
    """Search one claimed task to its row. Raises: as `work`."""
    try:
        with _renewing(queue, claim):
            on_task(claim.task, None)
            with HostMeter() as meter:
                found = searches.search(claim.task)
        result = found.model_copy(update={"host": meter.cost()})
        queue.finish(claim, result)
        on_task(claim.task, result)
    except UsageError as exc:  # the task is impossible here, such as one whose operands do not fit
        queue.fail(claim, str(exc), for_good=True)
    except StoreError:
        with suppress(StoreError):  # a full disk: the lease runs out instead
            queue.hand_back(claim)
        raise
    except KeyboardInterrupt:
        queue.hand_back(claim)
        raise
    except Exception as exc:  # whatever it is: the attempt ends with a reason, and another one may follow
        reason = f"{type(exc).__name__}: {exc}"[:_REASON_CHARS]
        queue.fail(claim, reason)
        if isinstance(exc, Cudal2Error):
            raise
        logger.warning("the search of %s failed", claim.task.shape, exc_info=exc)
        raise WorkerError(f"the search of {claim.task.shape} failed: {reason}") from exc


@contextmanager
def _renewing(queue: CampaignQueue, claim: Claim) -> Iterator[None]:
    """Renews the lease while the task is searched."""
    ended = threading.Event()

    def renew() -> None:
        while not ended.wait(LEASE_S / 3):
            with suppress(StoreError):  # it is tried again before the lease runs out
                queue.renew(claim)

    thread = threading.Thread(target=renew, daemon=True)
    thread.start()
    try:
        yield
    finally:
        ended.set()
        thread.join()


def run_gpu_worker(parent: ParentLine, order: WorkerOrder) -> None:
    """Entry of the process."""
    report_job(parent, lambda tell: search_all(order, tell))


def search_all(order: WorkerOrder, tell: Tell) -> None:
    """Open the sandbox, then work off the queue. Raises: as `work`."""
    progress = _TaskNews(tell)
    settings = order.settings
    with (
        device_lock(settings, order.lock),
        open_store(settings.store_url) as store,
        open_search(settings, store, progress.emit, order.commit) as search,
    ):
        tell(Doing(stage="starting"))
        search.open(order.arch)  # a machine that lacks something costs no task an attempt
        work(CampaignQueue(store, order.campaign), search, worker_name(os.getpid()), progress.on_task, order.deadline_s)


@contextmanager
def device_lock(settings: Settings, name: str) -> Iterator[None]:
    """One campaign per device. The system releases the lock of a process that dies. Raises: UsageError."""
    if not name:
        yield
        return
    folder = settings.locks_dir
    require_local(folder, "locks")
    folder.mkdir(parents=True, exist_ok=True)
    lock = FileLock(folder / f"{name}.lock", timeout=0)
    try:
        lock.acquire()
    except Timeout as exc:
        raise UsageError(f"another campaign is using {name}; wait for it, stop it, or choose other GPUs with --gpus") from exc
    try:
        yield
    finally:
        lock.release()


class _TaskNews:
    """Events of the searches as news."""

    def __init__(self, tell: Tell) -> None:
        self._tell, self._task, self._candidates = tell, "", 0

    def emit(self, event: Event) -> None:
        match event:
            case StepFinished():
                self._candidates += 1
                self._say("searching")
            case StageStarted(stage=stage):
                self._say(stage)

    def on_task(self, task: CampaignTask, result: CampaignResult | None) -> None:
        self._task = task.shape if result is None else ""
        self._say("building" if result is None else "claiming")

    def _say(self, stage: str) -> None:
        self._tell(Doing(task=self._task, stage=stage, candidates=self._candidates))
