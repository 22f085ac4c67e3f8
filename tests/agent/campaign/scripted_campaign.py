"""A campaign whose searches are scripted, in processes of its own that tests kill. Not a test.

`scripted_campaign.py HOME NAME WORKERS TASKS` runs one from the command line. Each search writes a line to HOME/begun.txt when
it begins, and takes 0.1 s. What a task does is decided by its K.
"""

import os
import signal
import sys
import time
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from cudal2_agent.agent.campaign.campaign_process import Doing, Tell, WorkerOrder, report_job, worker_name
from cudal2_agent.agent.campaign.gpu_worker import work
from cudal2_agent.contract.errors import MachineError, UsageError, WorkerError
from cudal2_agent.contract.records.campaign import ShapeResult
from cudal2_agent.contract.records.task import Arch, GemmTask
from cudal2_agent.contract.settings.settings import Settings
from cudal2_agent.processes.child import ParentLine
from cudal2_agent.store import campaign_queue as queue
from cudal2_agent.store.campaign_queue import CampaignQueue
from cudal2_agent.store.campaign_results import ResultFilter, claim_unproved, replace_result
from cudal2_agent.store.store import Store, open_store
from tests.store.campaigns.rows import result

SEARCH_S = 0.1
GOOD, KILLS_ONCE, KILLS, IMPOSSIBLE, BREAKS_ONCE, HANGS, UNPROVED = 32, 48, 80, 96, 112, 128, 144


class ScriptedSearch:
    def __init__(self, home: Path) -> None:
        self._begun = home / "begun.txt"

    def search(self, task: GemmTask) -> ShapeResult:
        before = begun(self._begun.parent).count(task.shape)
        with self._begun.open("a") as file:
            file.write(f"{task.shape}\n")
        self._begun.with_name("pid.txt").write_text(str(os.getpid()))
        if task.k == KILLS or (task.k == KILLS_ONCE and not before):
            os.kill(os.getpid(), signal.SIGKILL)
        if task.k == IMPOSSIBLE:
            raise UsageError("its operands do not fit")
        if task.k == BREAKS_ONCE and not before:
            raise WorkerError("the driver was lost")
        time.sleep(60 if task.k == HANGS else SEARCH_S)
        return result(task, run_id=None, witness="" if task.k == UNPROVED else "agreed")

    def close(self) -> None:
        """It holds no memory."""


def begun(home: Path) -> list[str]:
    """The shapes whose search began, in order."""
    path = home / "begun.txt"
    return path.read_text().split() if path.exists() else []


def run_scripted(parent: ParentLine, order: WorkerOrder) -> None:
    """Entry of a worker."""

    def job(tell: Tell) -> None:
        with open_store(order.settings.store_url) as store:
            mine, name = CampaignQueue(store, order.campaign), worker_name(os.getpid())
            search = ScriptedSearch(order.settings.home)
            work(mine, search, name, lambda task, row: tell(Doing(task="" if row else task.shape)), order.deadline_s)

    report_job(parent, job)


def run_scripted_prover(parent: ParentLine, order: WorkerOrder) -> None:
    """Entry of a prover, which upholds one winner after another and waits for more."""

    def job(tell: Tell) -> None:
        with open_store(order.settings.store_url) as store:
            while True:
                tell(Doing(stage="proving"))
                with store.writing() as connection:
                    claimed = claim_unproved(connection, ResultFilter(campaigns=(order.campaign,)))
                    if claimed is not None:
                        replace_result(connection, claimed.key, claimed.result.model_copy(update={"witness": "agreed"}))
                time.sleep(0.3)

    report_job(parent, job)


def run_broken(parent: ParentLine, _: WorkerOrder) -> None:
    """Entry of a worker that never gets ready."""

    def job(_: Tell) -> None:
        raise MachineError("there is no driver")

    report_job(parent, job)


@contextmanager
def scripted_search(order: WorkerOrder, _: Store) -> Any:
    """A search of an actor, whose leases are short."""
    queue.LEASE_S = 3.0
    yield ScriptedSearch(order.settings.home)


class Shown:
    """A display that keeps what it was shown."""

    def __init__(self) -> None:
        self.rows: list[ShapeResult] = []
        self.notes: list[str] = []
        self.last: Any = None

    def finished(self, row: ShapeResult) -> None:
        self.rows.append(row)

    def show(self, overview: Any) -> None:
        self.last = overview

    def note(self, message: str) -> None:
        self.notes.append(message)


def tasks_of(count: int, k: int = GOOD) -> dict[GemmTask, float]:
    return {GemmTask(m=16 * (number + 1), n=64, k=k): 1.0 for number in range(count)}


def main(home: Path, name: str, workers: int, count: int) -> None:
    from cudal2_agent.agent.campaign.campaign import Campaign, CampaignPlan

    settings = Settings(home=home, minutes=0.1)
    devices = tuple(f"emulator/{number}" for number in range(workers))
    with open_store(settings.store_url) as store:
        mine = CampaignQueue(store, name)
        mine.open(settings.recorded())
        mine.add(tasks_of(count), seed=0)
        plan = CampaignPlan(name=name, settings=settings, arch=Arch.SM_90A, devices=devices, provers=0)
        Campaign(plan, mine, Shown(), gpu_entry=run_scripted).run()


if __name__ == "__main__":
    main(Path(sys.argv[1]), sys.argv[2], int(sys.argv[3]), int(sys.argv[4]))
