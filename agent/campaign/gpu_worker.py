"""The process of one GPU. It ends when nothing is left, when it is told to, and when the process that started it is gone."""

import logging
import os
import signal
import socket
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from multiprocessing.connection import Connection
from types import FrameType

from filelock import FileLock, Timeout

from agent.campaign.claiming import work
from agent.campaign.messages import Doing, Ended, News, WorkerOrder
from agent.campaign.shape_search import open_search
from contract.campaign import ShapeResult
from contract.errors import CompilerMissing, Cudal2Error, UsageError
from contract.events import Event, StageStarted, StepFinished
from contract.settings import Settings
from contract.task import GemmTask
from policies.trajectories.campaigns.queue import CampaignQueue
from policies.trajectories.store import open_store

INTERRUPTED = 130
Tell = Callable[[News], None]


def worker_name(pid: int) -> str:
    """The name under which a process of this machine holds items."""
    return f"{socket.gethostname()[:100]}:{pid}"


def run_gpu_worker(order: WorkerOrder, pipe: "Connection[News, str]") -> None:
    """Entry of the process."""
    run_process(pipe, lambda tell: search_all(order, tell))


def run_process(pipe: "Connection[News, str]", job: Callable[[Tell], None]) -> None:
    """Run a job whose news go through the pipe. Whatever comes back through it, or its end, interrupts the job, once."""
    logging.basicConfig(level=logging.WARNING)
    signal.signal(signal.SIGINT, _interrupt_once)
    threading.Thread(target=_listen, args=(pipe,), daemon=True).start()
    tell = _teller(pipe)
    code = 0
    try:
        job(tell)
        tell(Ended())
    except KeyboardInterrupt:
        code = INTERRUPTED
    except Cudal2Error as exc:
        tell(Ended(reason=str(exc), hopeless=isinstance(exc, UsageError | CompilerMissing)))
        code = exc.exit_code
    os._exit(code)  # threads of libraries must not hold it up


def search_all(order: WorkerOrder, tell: Tell) -> None:
    """Open the sandbox, then work off the queue. Raises: as `work`."""
    progress = _Progress(tell)
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


class _Progress:
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


def _teller(pipe: "Connection[News, str]") -> Tell:
    lock = threading.Lock()

    def tell(news: News) -> None:
        with lock, suppress(OSError):  # the reader is gone; `_listen` ends this process
            pipe.send(news)

    return tell


def _listen(pipe: "Connection[News, str]") -> None:
    with suppress(EOFError, OSError):
        pipe.recv()
    os.kill(os.getpid(), signal.SIGINT)


def _interrupt_once(_: int, __: FrameType | None) -> None:
    """The first interrupt ends the work; later ones must not disturb what is handed back."""
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    raise KeyboardInterrupt
