"""The work of one worker: it claims a task, searches, records the result, and goes on until nothing is left or time is up."""

import logging
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from typing import Protocol

from cudal2_agent.agent.campaign.watching import leaves_time
from cudal2_agent.agent.wiring.host_use import HostMeter
from cudal2_agent.contract.errors import Cudal2Error, StoreError, UsageError, WorkerError
from cudal2_agent.contract.records.campaign import ShapeResult
from cudal2_agent.contract.records.task import GemmTask
from cudal2_agent.store.campaign_queue import LEASE_S, CampaignQueue, Claim

IDLE_S = 0.5  # between two looks at a queue in which others hold what is left
_REASON_CHARS = 300
logger = logging.getLogger(__name__)


class Searches(Protocol):
    def search(self, task: GemmTask) -> ShapeResult: ...

    def close(self) -> None:
        """Give back the memory of the GPU; the next search takes it again. Idempotent."""


# Called when a task begins (None) and when it ended with a result.
OnTask = Callable[[GemmTask, ShapeResult | None], None]


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
    except Exception as exc:
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
