"""What a process of a campaign is told to do, and what it reports."""

import gc
import logging
import socket
from collections.abc import Callable

from cudal2_agent.contract.base import Record
from cudal2_agent.contract.errors import CompilerMissing, Cudal2Error, UsageError
from cudal2_agent.contract.records.task import Arch
from cudal2_agent.contract.settings.settings import Settings
from cudal2_agent.processes.child import ParentLine

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


def report_job(parent: ParentLine, job: Callable[[Tell], None]) -> None:
    """Run a job whose news go to the parent, and report why it ended. Raises: KeyboardInterrupt, as the parent asks."""
    logging.basicConfig(level=logging.WARNING)
    gc.set_threshold(*RARE_COLLECTIONS)
    try:
        job(parent.send)
        parent.send(WorkerEnded())
    except Cudal2Error as exc:
        parent.send(WorkerEnded(reason=str(exc), hopeless=isinstance(exc, UsageError | CompilerMissing)))
