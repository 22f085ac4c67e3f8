"""The clock of a run: the time spent across restarts, and the agent's own share of it."""

import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager

from cudal2_agent.contract.protocols import Sandbox


class RunClock:
    """Wall-clock of one run. `base_s`: the time spent before this process resumed the run.

    `queued_s`: what passed without a worker so far, which is no time of the run.
    """

    def __init__(
        self,
        base_s: float = 0.0,
        now_s: Callable[[], float] = time.monotonic,
        queued_s: Callable[[], float] = lambda: 0.0,
    ) -> None:
        self._now_s = now_s
        self._queued_s, self._queued_before_s = queued_s, queued_s()
        self._start_s = now_s() - base_s
        self._lap_start_s = now_s()
        self._outside_s = 0.0

    def spent_s(self) -> float:
        return self._now_s() - self._start_s - (self._queued_s() - self._queued_before_s)

    def worked_s(self, sandbox: Sandbox) -> float:
        """The time spent, without what the sandbox waited for other processes, and with what a far side did ahead."""
        return self.spent_s() - sandbox.waited_s

    @contextmanager
    def outside(self) -> Iterator[None]:
        """Time in this context belongs to the sandbox or the policy, not to the agent."""
        begin_s = self._now_s()
        try:
            yield
        finally:
            self._outside_s += self._now_s() - begin_s

    def lap_s(self) -> float:
        """The agent's own seconds since the last lap."""
        now_s = self._now_s()
        own_s = now_s - self._lap_start_s - self._outside_s
        self._lap_start_s, self._outside_s = now_s, 0.0
        return max(own_s, 0.0)
