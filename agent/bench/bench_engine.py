"""The engine of a bench: each task gives a row. The next tasks are prepared in the background while one is measured."""

import time
from collections import deque
from collections.abc import Callable, Generator, Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import closing
from dataclasses import dataclass
from typing import Protocol, TypeVar

from cudal2_agent.contract.errors import UsageError
from cudal2_agent.contract.events import Emit, Notice

Row = TypeVar("Row", covariant=True)


class BenchJob(Protocol[Row]):
    """One task of a bench, with all its arms."""

    @property
    def title(self) -> str:
        """As progress names it."""

    def prepare(self) -> None:
        """What can be done while another task is measured. Raises: UsageError where the task cannot be run here."""

    def stop(self) -> None:
        """End what `prepare` does in another thread."""

    def run(self) -> Row:
        """Measure the task."""


@dataclass(frozen=True)
class BenchEngine:
    """`ahead`: tasks in preparation. `minutes`: no task begins that would not end by then, judged by the longest one so far.

    `spent`: why no further task may begin; empty where one may.
    """

    emit: Emit
    ahead: int = 1
    minutes: float | None = None
    spent: Callable[[], str] = str

    def rows(self, jobs: Generator[BenchJob[Row], None, None], total: int) -> Iterator[Row]:
        """The row of each job as it ends. Jobs are taken as late as `ahead` allows, so that they may open what they need.

        A job that cannot be run is left out with a notice.
        """
        begin_s, longest_s, number = time.monotonic(), 0.0, 0
        waiting = deque[tuple[BenchJob[Row], Future[None]]]()
        with closing(jobs), ThreadPoolExecutor(self.ahead) as background:
            try:
                for number in range(total):
                    self._look_ahead(background, jobs, waiting)
                    job, ready = waiting[0][0], self._ready(*waiting[0])
                    waiting.popleft()
                    task_begin_s = time.monotonic()
                    if why := self._spent(task_begin_s - begin_s + longest_s):
                        self._say(f"{why}; {total - number} tasks were not run")
                        return
                    if ready:
                        if self.ahead > 1:
                            self._look_ahead(background, jobs, waiting)
                        self._say(f"task {number + 1} of {total}, {job.title}")
                        yield job.run()
                    longest_s = max(longest_s, time.monotonic() - task_begin_s)
            except KeyboardInterrupt:
                self._say(f"interrupted with {total - number} tasks left; the same command resumes")
                raise
            finally:
                for job, _ in waiting:
                    job.stop()

    def _look_ahead(
        self,
        background: ThreadPoolExecutor,
        jobs: Iterator[BenchJob[Row]],
        waiting: deque[tuple[BenchJob[Row], Future[None]]],
    ) -> None:
        while len(waiting) < self.ahead and (job := next(jobs, None)) is not None:
            waiting.append((job, background.submit(job.prepare)))

    def _ready(self, job: BenchJob[Row], prepared: Future[None]) -> bool:
        try:
            prepared.result()
            return True
        except UsageError as exc:
            self._say(f"{job.title} is left out: {exc}")
            return False

    def _spent(self, seconds: float) -> str:
        late = self.minutes is not None and seconds > 60 * self.minutes
        return "the time is spent" if late else self.spent()

    def _say(self, message: str) -> None:
        self.emit(Notice(message=message))
