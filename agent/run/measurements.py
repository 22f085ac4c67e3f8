"""Measures built candidates on the run's sandbox. A failure of the sandbox costs a record, never a candidate."""

import logging
from collections.abc import Generator, Iterator, Sequence

from cudal2_agent.agent.run.clock import RunClock
from cudal2_agent.contract.errors import Cudal2Error, MachineError, UsageError, WorkerError
from cudal2_agent.contract.events import Emit, Notice, RaceStarted
from cudal2_agent.contract.protocols import Sandbox
from cudal2_agent.contract.records.build import Built
from cudal2_agent.contract.records.evaluation import Crashed, Evaluation
from cudal2_agent.contract.records.trajectory import RunRecord
from cudal2_agent.contract.settings.options import Effort

Measurement = tuple[Built, Evaluation, float]  # with its seconds

logger = logging.getLogger(__name__)


class Measurements:
    """Of one run. `failed`: the error that ends the run once the current candidate is recorded."""

    def __init__(self, run: RunRecord, sandbox: Sandbox, clock: RunClock, emit: Emit) -> None:
        self._run, self._sandbox, self._clock, self._emit = run, sandbox, clock, emit
        self.failed: Cudal2Error | None = None

    def of(self, batch: Sequence[Built]) -> Generator[Measurement]:
        """Measurements as they are made: kernels of trusted writers are screened together, others are timed one by one."""
        screens = self._sandbox.can_measure
        trusted = [built for built in batch if screens and built.candidate.origin.trusted_writer]
        if trusted:
            yield from self._screen(trusted)
        for built in batch:
            if built not in trusted:
                yield self._evaluated(built, "quick")

    def _screen(self, batch: Sequence[Built]) -> Iterator[Measurement]:
        """If the sandbox itself fails, the first candidate without a result is recorded before the run ends.

        Raises: MachineError, UsageError: a resumed run tries the rest of the batch again.
        """
        left = list(batch)
        outcomes = self._sandbox.screen(batch, self._run.task)
        while True:
            begin_s = self._clock.worked_s(self._sandbox)
            try:
                with self._clock.outside():
                    item = next(outcomes, None)
                if item is None and left:
                    raise WorkerError(f"{len(left)} of {len(batch)} candidates were not screened")
            except (MachineError, UsageError):
                raise
            except Exception as exc:
                if not left:
                    raise
                yield left[0], self._crashed(left[0], exc), self._clock.worked_s(self._sandbox) - begin_s
                return
            if item is None:
                return
            position, evaluation = item
            left.remove(batch[position])
            yield batch[position], evaluation, self._clock.worked_s(self._sandbox) - begin_s

    def raced(self, batch: Sequence[Built]) -> Iterator[Measurement]:
        """The race's measurements. If the race itself fails, the finalists are measured one by one, in full."""
        if not batch:
            return
        self._emit(RaceStarted(count=len(batch)))
        begin_s = self._clock.worked_s(self._sandbox)
        try:
            with self._clock.outside():
                evaluations = self._sandbox.race(batch, self._run.task)
        except (MachineError, UsageError):
            raise
        except Exception as exc:
            logger.warning("the race failed", exc_info=exc)
            self._emit(Notice(message=f"the race failed ({exc}); the finalists are measured one by one"))
            yield from (self._evaluated(built, "full") for built in batch)
            return
        share_s = (self._clock.worked_s(self._sandbox) - begin_s) / len(batch)
        for built, evaluation in zip(batch, evaluations, strict=True):
            yield built, evaluation, share_s

    def _evaluated(self, built: Built, effort: Effort) -> Measurement:
        """The sandbox's evaluation. If the sandbox itself fails, the candidate is recorded before the run ends.

        Raises: MachineError, UsageError: a resumed run tries the candidate again.
        """
        begin_s = self._clock.worked_s(self._sandbox)
        try:
            with self._clock.outside():
                evaluation = self._sandbox.evaluate(built, self._run.task, effort)
        except (MachineError, UsageError):
            raise
        except Exception as exc:  # noqa: BLE001 (logged, recorded, and raised once it is a step)
            evaluation = self._crashed(built, exc)
        return built, evaluation, self._clock.worked_s(self._sandbox) - begin_s

    def _crashed(self, built: Built, exc: Exception) -> Crashed:
        """The record of the candidate in hand when the sandbox failed. The run ends once it is a step."""
        self.failed = exc if isinstance(exc, Cudal2Error) else WorkerError(f"internal error: {type(exc).__name__}: {exc}")
        logger.warning("candidate %s could not be evaluated", built.candidate.id, exc_info=exc)
        message = f"the run failed while this candidate was evaluated: {exc}"
        return Crashed(stage="evaluate", message=message, inspection=built.inspection)
