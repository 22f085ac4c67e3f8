"""The engine of benches over scripted jobs: order, preparation, limits, what is left out, and what an interrupt leaves."""

import time
from collections.abc import Callable, Generator

import pytest

from cudal2_agent.agent.bench.bench_engine import BenchEngine
from cudal2_agent.contract.errors import UsageError
from cudal2_agent.contract.events import Event, Notice


class Job:
    """Its row is its number. `log`: what happened, in order."""

    def __init__(self, number: int, log: list[str], run: Callable[[], None] = lambda: None, problem: str = "") -> None:
        self.title, self._number, self._log, self._run, self._problem = f"job {number}", number, log, run, problem

    def prepare(self) -> None:
        if self._problem:
            raise UsageError(self._problem)

    def stop(self) -> None:
        self._log.append(f"stop {self._number}")

    def run(self) -> int:
        self._log.append(f"run {self._number}")
        self._run()
        return self._number


def made(log: list[str], *jobs: Job) -> Generator[Job, None, None]:
    for number, job in enumerate(jobs, 1):
        log.append(f"open {number}")
        yield job
    log.append("closed")


def test_with_one_ahead_a_job_is_opened_once_the_one_before_has_ended() -> None:
    log, said = list[str](), list[Event]()
    assert list(BenchEngine(said.append).rows(made(log, Job(1, log), Job(2, log)), 2)) == [1, 2]
    assert log == ["open 1", "run 1", "open 2", "run 2"]
    assert said == [Notice(message="task 1 of 2, job 1"), Notice(message="task 2 of 2, job 2")]


def test_with_two_ahead_the_next_two_are_prepared_while_one_runs() -> None:
    log = list[str]()
    rows = BenchEngine(lambda _: None, ahead=2).rows(made(log, *(Job(number, log) for number in range(1, 5))), 4)
    assert next(rows) == 1
    assert log == ["open 1", "open 2", "open 3", "run 1"]
    assert list(rows) == [2, 3, 4]


def test_a_job_that_cannot_be_run_is_left_out_with_a_notice() -> None:
    log, said = list[str](), list[Event]()
    assert list(BenchEngine(said.append).rows(made(log, Job(1, log, problem="too large"), Job(2, log)), 2)) == [2]
    assert Notice(message="job 1 is left out: too large") in said


def test_no_job_begins_after_a_limit_and_what_was_prepared_is_stopped() -> None:
    log, said = list[str](), list[Event]()
    jobs = made(log, *(Job(number, log, lambda: time.sleep(0.05)) for number in (1, 2, 3)))
    assert list(BenchEngine(said.append, ahead=2, minutes=0.06 / 60).rows(jobs, 3)) == [1]
    assert said[-1] == Notice(message="the time is spent; 2 tasks were not run")
    assert log[-1] == "stop 3"
    log.clear()
    assert list(BenchEngine(said.append, spent=lambda: "the cap is reached").rows(made(log, Job(1, log)), 1)) == []
    assert said[-1] == Notice(message="the cap is reached; 1 tasks were not run")


def test_an_interrupt_says_what_is_left_and_closes_what_is_open() -> None:
    def interrupted() -> None:
        raise KeyboardInterrupt

    log, said, closed = list[str](), list[Event](), list[bool]()

    def jobs() -> Generator[Job, None, None]:
        try:
            yield from made(log, Job(1, log), Job(2, log, interrupted), Job(3, log))
        finally:
            closed.append(True)

    rows = BenchEngine(said.append).rows(jobs(), 3)
    assert next(rows) == 1
    with pytest.raises(KeyboardInterrupt):
        next(rows)
    assert said[-1] == Notice(message="interrupted with 2 tasks left; the same command resumes")
    assert closed == [True]
