"""Builds in the background: a batch is proposed and compiled in a thread of its own while the GPU works."""

import threading
import time
from collections.abc import Callable, Sequence
from concurrent.futures import Future
from queue import Empty, SimpleQueue
from typing import NamedTuple

from cudal2_agent.contract.protocols import MeasuresAhead, Sandbox
from cudal2_agent.contract.records.build import Built
from cudal2_agent.contract.records.candidate import AnyCandidate
from cudal2_agent.contract.records.evaluation import Evaluation
from cudal2_agent.contract.records.module_task import Task


class RoundProposal(NamedTuple):
    """A round's candidates. `dropped`: how many were proposed and not taken. `seconds`: what the policy took."""

    batch: Sequence[AnyCandidate]
    dropped: int = 0
    seconds: float = 0.0


class Finished(NamedTuple):
    """A build that has ended. `position`: of the candidate in its batch."""

    position: int
    candidate: AnyCandidate
    outcome: Built | Evaluation
    seconds: float


class BatchBuild:
    """Proposes a batch and builds it, both in the background. An error of either is raised to the caller that waits for it.

    Candidates for which `skip` holds are not built: they are steps already. `counters`: those of a model's kernels are asked
    at the end of the round.
    """

    def __init__(
        self,
        sandbox: Sandbox,
        task: Task,
        propose: Callable[[], RoundProposal],
        skip: Callable[[AnyCandidate], bool] = lambda _: False,
        *,
        counters: bool = False,
    ) -> None:
        self._sandbox, self._task, self._propose, self._skip = sandbox, task, propose, skip
        self._counters = counters
        self._proposal: Future[RoundProposal] = Future()
        self._finished: SimpleQueue[Finished | None] = SimpleQueue()  # None follows the last one
        self._failure: BaseException | None = None
        self._cancel = threading.Event()
        self._built = self._ended = 0
        self.build_s: float | None = None
        """How long the builds took; None while they go on."""
        self._delivered_all = False
        self._thread = threading.Thread(target=self._run, name="batch-build", daemon=True)
        self._thread.start()

    def proposal(self) -> RoundProposal:
        """The batch, once the policy has proposed it. Raises: what the policy raised."""
        return self._proposal.result()

    @property
    def waiting(self) -> int:
        """Builds that were not delivered yet."""
        return 0 if self._delivered_all else max(len(self.proposal().batch) - self._built, 1)

    @property
    def unfinished(self) -> int:
        """Builds that go on or were not begun yet, whether or not those that ended were delivered."""
        return 0 if self.build_s is not None else max(len(self.proposal().batch) - self._ended, 0)

    def ready(self, *, wait: bool) -> list[Finished]:
        """What has finished since the last call, by position. With `wait`, at least one, or none where all were delivered.

        Raises: what the builds raised, after everything that finished before was delivered.
        """
        found: list[Finished] = []
        while not self._delivered_all:
            try:
                item = self._finished.get(block=wait and not found)
            except Empty:
                break
            if item is None:
                self._delivered_all = True
            else:
                found.append(item)
        if not found and self._failure is not None:
            raise self._failure
        self._built += len(found)
        return sorted(found)

    def cancel(self) -> None:
        """Ends the builds that are still going on, without waiting for their processes."""
        self._cancel.set()

    def close(self) -> None:
        """Ends the builds that are still going on, and waits until their processes have ended."""
        self.cancel()
        self._thread.join()

    def _run(self) -> None:
        try:
            proposal = self._propose()
        except BaseException as exc:  # noqa: BLE001 (raised where the result is awaited)
            self._proposal.set_exception(exc)
            self._finished.put(None)
            return
        self._proposal.set_result(proposal)
        begin_s = time.monotonic()
        try:
            self._build(proposal.batch, begin_s)
        except BaseException as exc:  # noqa: BLE001 (raised where the result is awaited)
            self._failure = exc
        self.build_s = time.monotonic() - begin_s
        self._finished.put(None)

    def _build(self, batch: Sequence[AnyCandidate], begin_s: float) -> None:
        places = [place for place, candidate in enumerate(batch) if not self._skip(candidate)]
        if not places or self._cancel.is_set():
            return
        candidates = [batch[place] for place in places]
        if isinstance(self._sandbox, MeasuresAhead):
            outcomes = self._sandbox.build_to_measure(candidates, self._task, self._cancel, counters=self._counters)
        else:
            outcomes = self._sandbox.build(candidates, self._task, self._cancel)
        for number, outcome in outcomes:
            seconds = outcome.seconds if isinstance(outcome, Built) else time.monotonic() - begin_s
            self._finished.put(Finished(places[number], candidates[number], outcome, seconds))
            self._ended += 1
            if self._cancel.is_set():
                return
