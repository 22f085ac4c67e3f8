"""A process of a campaign: its order, its news, and its end: with its job, when it is told to, or when its parent is gone."""

import gc
import logging
import os
import signal
import socket
import threading
from collections.abc import Callable
from contextlib import suppress
from multiprocessing.connection import Connection
from types import FrameType

from cudal2_agent.contract.base import Record
from cudal2_agent.contract.errors import CompilerMissing, Cudal2Error, UsageError
from cudal2_agent.contract.records.task import Arch
from cudal2_agent.contract.settings.settings import Settings

INTERRUPTED = 130
# A search keeps some 100,000 objects of its space of schedules, which every collection of the oldest generation visits:
# with Python's own thresholds a third of the time in which PTX is parsed.
RARE_COLLECTIONS = (50_000, 20, 20)


class WorkerOrder(Record):
    """What a process is to do. `device`: as in the settings, such as cuda:1. `lock`: name of the device's lock, empty for none.

    `deadline_s`: seconds since 1970, after which no task is begun. `commit`: of the product, for the rows.
    """

    campaign: str
    settings: Settings
    arch: Arch
    lock: str = ""
    deadline_s: float | None = None
    commit: str = ""


class Doing(Record):
    """What a process does now. `task`: empty between two. `candidates`: how many it has evaluated so far."""

    task: str = ""
    stage: str = ""
    candidates: int = 0


class WorkerEnded(Record):
    """Why a process ends: empty where nothing is left. `hopeless`: another process would fail in the same way."""

    reason: str = ""
    hopeless: bool = False


News = Doing | WorkerEnded
Tell = Callable[[News], None]


def worker_name(pid: int) -> str:
    """The name under which a process of this machine holds items."""
    return f"{socket.gethostname()[:100]}:{pid}"


def run_child(pipe: "Connection[News, str]", job: Callable[[Tell], None]) -> None:
    """Run a job whose news go through the pipe. Whatever comes back through it, or its end, interrupts the job, once."""
    logging.basicConfig(level=logging.WARNING)
    gc.set_threshold(*RARE_COLLECTIONS)
    signal.signal(signal.SIGINT, _interrupt_once)
    threading.Thread(target=_listen, args=(pipe,), daemon=True).start()
    tell = _teller(pipe)
    code = 0
    try:
        job(tell)
        tell(WorkerEnded())
    except KeyboardInterrupt:
        code = INTERRUPTED
    except Cudal2Error as exc:
        tell(WorkerEnded(reason=str(exc), hopeless=isinstance(exc, UsageError | CompilerMissing)))
        code = exc.exit_code
    os._exit(code)  # threads of libraries must not hold it up


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
