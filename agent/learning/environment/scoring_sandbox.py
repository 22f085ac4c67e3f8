"""What a score asks of a worker, and the worker of this process: one open sandbox, which evaluates as the reward requires.

On a GPU, kernels of trusted writers are screened in batches while others are still being built. Any other kernel is verified in
full and timed; the emulator then proves it, since it has no reward otherwise. Without a GPU the emulator proves all of them.
The candidates of further tasks are built while those of a task are executed, which are executed one after another.
"""

import threading
import time
from collections.abc import Generator, Iterator, Sequence
from contextlib import closing, contextmanager
from typing import NamedTuple, Protocol

from cudal2_agent.agent.run.batch_build import BatchBuild, RoundProposal
from cudal2_agent.agent.run.witnessing import judged, verdict_of
from cudal2_agent.agent.wiring.sandbox import open_sandbox_of
from cudal2_agent.contract.base import Record
from cudal2_agent.contract.errors import UsageError, WorkerError
from cudal2_agent.contract.events import Emit, ignore
from cudal2_agent.contract.plan.chip import Chip
from cudal2_agent.contract.protocols import Sandbox
from cudal2_agent.contract.records.build import Built
from cudal2_agent.contract.records.evaluation import Evaluation, Measured
from cudal2_agent.contract.records.module_task import Task
from cudal2_agent.contract.records.task import Arch
from cudal2_agent.contract.reward.reward import beyond_roofline
from cudal2_agent.contract.reward.score import TaskCandidates
from cudal2_agent.contract.settings.settings import Settings
from cudal2_agent.store.store import open_store

END_PATIENCE_S = 15.0
JOBS = 16  # builds at a time, where the settings are not known


class ScoringOrder(Record):
    """The sandbox that a worker opens. `settings.device`: on which device."""

    settings: Settings
    arch: Arch


class ScoringPlace(Record):
    """Where candidates are evaluated. `key`: what decides whether two evaluations may stand for each other.

    `measures`: whether a GPU times them; otherwise the emulator proves them.
    """

    chip: Chip
    key: str
    measures: bool


class WorkerOutcome(NamedTuple):
    """`position`: of the candidate among those of all groups, in order. `executed_s`: to verify and time it."""

    position: int
    evaluation: Evaluation
    executed_s: float = 0.0


class ScoringWorkerLost(Exception):
    """A worker ended in the middle of its candidates. It is usable again. The message says how it ended."""


class ScoringWorker(Protocol):
    """Evaluates one request at a time."""

    def place(self) -> ScoringPlace:
        """Opens the sandbox if it is not open. Raises: MachineError, UsageError, WorkerError."""
        ...

    def evaluate(self, groups: Sequence[TaskCandidates]) -> Generator[WorkerOutcome]:
        """The outcomes as each is known. A caller that stops early closes the iterator.

        Raises: ScoringWorkerLost; MachineError, UsageError, WorkerError.
        """
        ...

    def close(self) -> None: ...


class ScoringSandbox:
    """A `ScoringWorker` in this process. The caller that opened the sandbox closes it.

    `jobs`: the builds of a further task begin while fewer than these go on.
    """

    def __init__(self, sandbox: Sandbox, jobs: int = JOBS) -> None:
        self._sandbox, self._jobs = sandbox, jobs
        self._working = threading.Lock()
        self._closed = False

    def place(self) -> ScoringPlace:
        """Raises: UsageError where nothing executes candidates."""
        if not self._sandbox.can_execute:
            raise UsageError("a score needs a GPU or the emulator; choose one with --device, or see: cudal2-agent doctor")
        environment = self._sandbox.environment if self._sandbox.can_measure else None
        key = environment.key if environment else f"emulator of {self._sandbox.chip.arch}"
        return ScoringPlace(chip=self._sandbox.chip, key=key, measures=self._sandbox.can_measure)

    def evaluate(self, groups: Sequence[TaskCandidates]) -> Generator[WorkerOutcome]:
        """See `ScoringWorker.evaluate`. Raises: WorkerError once it was closed."""
        with self._working, closing(BuildsAhead(self._sandbox, groups, self._jobs)) as ahead:
            first = 0
            for number, group in enumerate(groups):
                for outcome in self._of_task(ahead, number, group.task):
                    yield outcome._replace(position=first + outcome.position)
                    ahead.go_on()
                    if self._closed:
                        raise WorkerError("the score was closed")
                first += len(group.candidates)

    def _of_task(self, ahead: "BuildsAhead", number: int, task: Task) -> Iterator[WorkerOutcome]:
        """The outcomes of one task's candidates, in the order in which their builds end."""
        builds = ahead.of(number)
        while finished := builds.ready(wait=True):
            yield from (WorkerOutcome(one.position, one.outcome) for one in finished if not isinstance(one.outcome, Built))
            begin_s = time.monotonic()
            built = [(one.position, one.outcome) for one in finished if isinstance(one.outcome, Built)]
            for position, evaluation in self._executed(built, task):
                yield WorkerOutcome(position, evaluation, time.monotonic() - begin_s)
                begin_s = time.monotonic()

    def close(self) -> None:
        """Waits for the candidate that another thread evaluates, but not for the rest of its request."""
        self._closed = True
        if self._working.acquire(timeout=END_PATIENCE_S):
            self._working.release()

    def _executed(self, built: Sequence[tuple[int, Built]], task: Task) -> Iterator[tuple[int, Evaluation]]:
        screened = [each for each in built if self._sandbox.can_measure and each[1].candidate.origin.trusted_writer]
        if screened:
            for place, evaluation in self._sandbox.screen([one for _, one in screened], task):
                yield screened[place][0], evaluation
        for position, one in built:
            if (position, one) not in screened:
                yield position, self._proved(one, task)

    def _proved(self, built: Built, task: Task) -> Evaluation:
        """The evaluation, with the verdict of the emulator where a GPU measured it."""
        evaluation = self._sandbox.evaluate(built, task, "quick")
        if not isinstance(evaluation, Measured) or beyond_roofline(evaluation, task, self._sandbox.chip):
            return evaluation
        return judged(evaluation, verdict_of(self._sandbox.witness(built, task)))


class BuildsAhead:
    """The builds of several tasks in order. Those of a further task begin while fewer than `jobs` go on."""

    def __init__(self, sandbox: Sandbox, groups: Sequence[TaskCandidates], jobs: int) -> None:
        self._sandbox, self._groups, self._jobs = sandbox, groups, jobs
        self._begun: list[BatchBuild] = []
        self.go_on()

    def go_on(self) -> None:
        """Begin what may begin by now."""
        while len(self._begun) < len(self._groups) and sum(one.unfinished for one in self._begun) < self._jobs:
            self._begin()

    def of(self, number: int) -> BatchBuild:
        """The builds of a group."""
        while len(self._begun) <= number:
            self._begin()
        self.go_on()
        return self._begun[number]

    def close(self) -> None:
        """Ends the builds that go on."""
        for one in self._begun:
            one.cancel()
        for one in self._begun:
            one.close()

    def _begin(self) -> None:
        group = self._groups[len(self._begun)]
        self._begun.append(BatchBuild(self._sandbox, group.task, lambda: RoundProposal(group.candidates)))


@contextmanager
def open_scoring_sandbox(order: ScoringOrder, emit: Emit = ignore) -> Iterator[ScoringSandbox]:
    """The real sandbox. Tuned baselines are kept in the trajectory store. Raises: MachineError, UsageError, StoreError."""
    with (
        open_store(order.settings.store_url) as store,
        open_sandbox_of(order.arch, order.settings, emit, baselines=store) as sandbox,
    ):
        yield ScoringSandbox(sandbox, order.settings.compile_jobs)
