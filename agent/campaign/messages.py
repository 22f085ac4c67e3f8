"""What the processes of a campaign are told and what they report."""

from contract.base import Record
from contract.settings import Settings
from contract.task import Arch


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


class Ended(Record):
    """Why a process ends: empty where nothing is left. `hopeless`: another process would fail in the same way."""

    reason: str = ""
    hopeless: bool = False


News = Doing | Ended
