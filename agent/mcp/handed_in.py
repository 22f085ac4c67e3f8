"""The policy of a run whose kernels another agent hands in, and where the run's thread and the tools' thread meet.

The run's graph asks for a proposal and waits. While it waits, a tool may use the sandbox; nothing is timed beside it.
"""

import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager

from cudal2_agent.contract.errors import UsageError
from cudal2_agent.contract.events import Event, StepFinished
from cudal2_agent.contract.records.candidate import Candidate
from cudal2_agent.contract.records.trajectory import Observation
from cudal2_agent.contract.settings.run_settings import HANDED_IN

TIME_SPENT = "the time is spent"
EVALUATING = "the run is evaluating a kernel that was handed in"
OPENING = "the run is being opened"


class NotNow(UsageError):
    """The run does something else. The message says what; the same call is possible later."""


class RunEnded(UsageError):
    """A tool was called after the run's end. The message is what the run has come to."""


class HandedIn:
    """Proposes one kernel a round: the next one that is handed in. Waits as long as the search has time."""

    name = HANDED_IN
    reads_code = True

    def __init__(self) -> None:
        self.exhausted = ""
        self._changed = threading.Condition()
        self._observation: Observation | None = None
        self._waiting = self._used = self._left = False
        self._until: float | None = None
        self._handed: Candidate | None = None
        self._recorded: set[str] = set()
        self._ended: str | None = None

    def propose(self, observation: Observation, count: int) -> list[Candidate]:  # noqa: ARG002
        """Raises: KeyboardInterrupt once the agent has left: the run is interrupted, and can be resumed."""
        until = None if observation.seconds_left is None else time.monotonic() + observation.seconds_left
        self._until = until
        with self._changed:
            self._observation, self._waiting = observation, True
            self._changed.notify_all()
            try:
                while self._used or not (self._handed or self.exhausted or self._left):
                    left = None if until is None or self._used else until - time.monotonic()
                    if left is not None and left <= 0:
                        self.exhausted = TIME_SPENT
                    else:
                        self._changed.wait(left)
            finally:
                self._waiting = False
            if self._left:
                raise KeyboardInterrupt
            handed, self._handed = self._handed, None
            return [handed] if handed and not self.exhausted else []

    def see(self, event: Event) -> None:
        """Take notice of an event of the run."""
        if isinstance(event, StepFinished):
            with self._changed:
                self._recorded.add(event.candidate_id)
                self._changed.notify_all()

    def rest(self, seconds: float) -> None:
        """Wait until the run does nothing. Raises: NotNow where it is still evaluating; RunEnded."""
        with self._changed:
            self._wait(lambda: self._waiting and not self.exhausted, seconds)

    def observed(self, seconds: float) -> Observation:
        """The observation of the round that goes on, or that is evaluated. Raises: NotNow while the run is opened; RunEnded."""
        with self._changed:
            self._wait(lambda: self._observation is not None, seconds, OPENING)
            assert self._observation is not None
            return self._observation

    @contextmanager
    def turn(self, seconds: float) -> Iterator[None]:
        """Time in which the run does nothing. Raises: NotNow where it is still evaluating; RunEnded."""
        with self._changed:
            self._wait(lambda: self._waiting and not self.exhausted, seconds)
            self._used = True
        try:
            yield
        finally:
            with self._changed:
                self._used = False
                self._changed.notify_all()

    def evaluate(self, candidate: Candidate, seconds: float, *, whole: bool) -> bool:
        """Hand a kernel in and wait until its step is recorded; `whole`: until the round is over, proof and counters included.

        False where that takes longer: the round goes on. Raises: NotNow where the round before it still goes on; RunEnded.
        """
        until = time.monotonic() + seconds
        with self._changed:
            self._wait(lambda: self._waiting and not self.exhausted, seconds)
            self._handed, self._waiting = candidate, False
            self._changed.notify_all()
        return self.over(candidate, until - time.monotonic(), whole=whole)

    def over(self, candidate: Candidate, seconds: float, *, whole: bool) -> bool:
        """Whether the evaluation of a kernel that was handed in ends in time, as `evaluate` says."""
        with self._changed:
            return self._changed.wait_for(
                lambda: self._ended is not None or self._waiting or (not whole and candidate.id in self._recorded),
                max(seconds, 0.0),
            )

    def finish(self, reason: str, seconds: float) -> bool:
        """End the search, and wait for the run's end. False where that takes longer."""
        with self._changed:
            self.exhausted = self.exhausted or reason
            self._changed.notify_all()
            return self._changed.wait_for(lambda: self._ended is not None, max(seconds, 0.0))

    def leave(self) -> None:
        """The agent is gone: the run is interrupted once what is being evaluated is recorded."""
        with self._changed:
            self._left = True
            self._changed.notify_all()

    def close(self, outcome: str) -> None:
        """The run has ended. `outcome`: what it has come to, in words, for the calls that follow."""
        with self._changed:
            self._ended = outcome
            self._changed.notify_all()

    @property
    def gone(self) -> bool:
        """Whether the agent has left."""
        return self._left

    @property
    def seconds_left(self) -> float | None:
        """Of the search; None where it has no limit, or before the first round."""
        return None if self._until is None else max(self._until - time.monotonic(), 0.0)

    @property
    def ended(self) -> str | None:
        return self._ended

    def _wait(self, holds: Callable[[], bool], seconds: float, meanwhile: str = EVALUATING) -> None:
        if not self._changed.wait_for(lambda: self._ended is not None or holds(), max(seconds, 0.0)):
            raise NotNow(f"{meanwhile}; call again")
        if self._ended is not None:
            raise RunEnded(self._ended)
