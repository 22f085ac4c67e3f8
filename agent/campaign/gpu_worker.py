"""The process of one GPU: it locks the device, opens the sandbox and works off the queue."""

import os
from collections.abc import Iterator
from contextlib import contextmanager

from filelock import FileLock, Timeout

from cudal2_agent.agent.campaign.campaign_process import Doing, Tell, WorkerOrder, report_job, worker_name
from cudal2_agent.agent.campaign.claiming import work
from cudal2_agent.agent.campaign.shape_search import open_search
from cudal2_agent.contract.errors import UsageError
from cudal2_agent.contract.events import Event, StageStarted, StepFinished
from cudal2_agent.contract.records.campaign import ShapeResult
from cudal2_agent.contract.records.task import GemmTask
from cudal2_agent.contract.settings.settings import Settings
from cudal2_agent.processes.child import ParentLine
from cudal2_agent.store.campaign_queue import CampaignQueue
from cudal2_agent.store.store import open_store


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
    folder = settings.home / "locks"
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

    def on_task(self, task: GemmTask, result: ShapeResult | None) -> None:
        self._task = task.shape if result is None else ""
        self._say("building" if result is None else "claiming")

    def _say(self, stage: str) -> None:
        self._tell(Doing(task=self._task, stage=stage, candidates=self._candidates))
