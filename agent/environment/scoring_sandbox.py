"""Evaluates candidates in one open sandbox, as their reward requires.

On a GPU, kernels of trusted writers are screened in batches while others are still being built. Any other kernel is verified in
full and timed; the emulator then proves it, since it has no reward otherwise. Without a GPU the emulator proves all of them.
"""

import threading
from collections.abc import Generator, Iterator, Sequence
from contextlib import contextmanager

from agent.environment.scoring_worker import ScoringOrder, ScoringPlace
from agent.run.batch_build import BatchBuild, RoundProposal
from agent.run.witnessing import judged, verdict_of
from agent.wiring.sandbox import open_sandbox_of
from contract.build import Built
from contract.candidate import AnyCandidate
from contract.errors import UsageError, WorkerError
from contract.evaluation import Evaluation, Measured
from contract.events import Emit, ignore
from contract.protocols import Sandbox
from contract.reward import beyond_roofline
from contract.task import GemmTask
from policies.trajectories.store import open_store

END_PATIENCE_S = 15.0


class ScoringSandbox:
    """A `ScoringWorker` in this process. The caller that opened the sandbox closes it."""

    def __init__(self, sandbox: Sandbox) -> None:
        self._sandbox = sandbox
        self._working = threading.Lock()
        self._closed = False

    def place(self) -> ScoringPlace:
        """Raises: UsageError where nothing executes candidates."""
        if not self._sandbox.can_execute:
            raise UsageError("a score needs a GPU or the emulator; choose one with --device, or see: cudal2-agent doctor")
        environment = self._sandbox.environment if self._sandbox.can_measure else None
        key = environment.key if environment else f"emulator of {self._sandbox.chip.arch}"
        return ScoringPlace(chip=self._sandbox.chip, key=key, measures=self._sandbox.can_measure)

    def evaluate(self, task: GemmTask, candidates: Sequence[AnyCandidate]) -> Generator[tuple[int, Evaluation]]:
        """See `ScoringWorker.evaluate`. Raises: WorkerError once it was closed."""
        with self._working:
            builds = BatchBuild(self._sandbox, task, lambda: RoundProposal(candidates))
            try:
                while finished := builds.ready(wait=True):
                    yield from ((one.position, one.outcome) for one in finished if not isinstance(one.outcome, Built))
                    built = [(one.position, one.outcome) for one in finished if isinstance(one.outcome, Built)]
                    for outcome in self._executed(built, task):
                        yield outcome
                        if self._closed:
                            raise WorkerError("the score was closed")
            finally:
                builds.close()

    def close(self) -> None:
        """Waits for the candidate that another thread evaluates, but not for the rest of its request."""
        self._closed = True
        if self._working.acquire(timeout=END_PATIENCE_S):
            self._working.release()

    def _executed(self, built: Sequence[tuple[int, Built]], task: GemmTask) -> Iterator[tuple[int, Evaluation]]:
        screened = [each for each in built if self._sandbox.can_measure and each[1].candidate.origin.trusted_writer]
        if screened:
            for place, evaluation in self._sandbox.screen([one for _, one in screened], task):
                yield screened[place][0], evaluation
        for position, one in built:
            if (position, one) not in screened:
                yield position, self._proved(one, task)

    def _proved(self, built: Built, task: GemmTask) -> Evaluation:
        """The evaluation, with the verdict of the emulator where a GPU measured it."""
        evaluation = self._sandbox.evaluate(built, task, "quick")
        if not isinstance(evaluation, Measured) or beyond_roofline(evaluation, task, self._sandbox.chip):
            return evaluation
        return judged(evaluation, verdict_of(self._sandbox.witness(built, task)))


@contextmanager
def open_scoring_sandbox(order: ScoringOrder, emit: Emit = ignore) -> Iterator[ScoringSandbox]:
    """The real sandbox. Tuned baselines are kept in the trajectory store. Raises: MachineError, UsageError, StoreError."""
    with (
        open_store(order.settings.store_url) as store,
        open_sandbox_of(order.arch, order.settings, emit, baselines=store) as sandbox,
    ):
        yield ScoringSandbox(sandbox)
