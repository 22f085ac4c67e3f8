"""Runs the comparison in a worker process. After a crash or a hang, another one goes on without that peer on that shape."""

import json
import queue
import subprocess
import threading
import time
from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Any

from cudal2_agent.contract.base import Record

START_S = 120.0  # a worker that opens its peers for so long hangs
CRASHES = 3  # of one peer, after which it is left out of all shapes
START, RACE, BETWEEN = "start", "race", "between two shapes"  # what a worker is at when no peer is at work

Told = dict[str, Any]


class ShapeJob(Record):
    """One shape for the worker. `without`: peers that are left out of it, and why."""

    shape: str
    element: str = "f16"
    without: dict[str, str] = {}

    @property
    def name(self) -> str:
        return self.shape if self.element == "f16" else f"{self.shape} {self.element}"


@dataclass(frozen=True)
class TimeAllowance:
    """Seconds of the whole run, and of one peer on one shape, its race included."""

    seconds: float
    peer_seconds: float = 30.0


@dataclass
class Outcome:
    """`rows`: as the worker told them. `environment`: where they were measured. `left`: shapes that time did not reach."""

    rows: list[Told] = field(default_factory=list)
    environment: Told | None = None
    left: list[str] = field(default_factory=list)
    troubles: list[str] = field(default_factory=list)


def supervise(
    command: Sequence[str],
    jobs: Sequence[ShapeJob],
    options: dict[str, Any],
    limits: TimeAllowance,
    heard: Callable[[ShapeJob, Told], None] = lambda _job, _told: None,
) -> Outcome:
    """The rows of as many jobs as fit into the seconds.

    The command reads a JSON line with `options` and `jobs`, and answers with one JSON line for each thing that happens:
    `environment`, `begins` (a peer, or one of `START` and `RACE`), `row`, or `failed` (why it ends). `heard`: called with each
    of them, and with the job that the worker is at; an exception of it ends the worker and the run.
    """
    outcome, waiting, crashes = Outcome(), list(jobs), Counter[str]()
    until = time.monotonic() + limits.seconds
    while waiting and time.monotonic() < until:
        current, ended = _one_worker(command, options, waiting, outcome, until, limits.peer_seconds, heard)
        if waiting and time.monotonic() < until:
            outcome.troubles.append(f"{waiting[0].name}, {current}: {ended}")
            crashes[current] += 1
            if current == START or crashes[BETWEEN] + crashes[RACE] > CRASHES:
                break
            waiting = _without(waiting, current, ended, everywhere=crashes[current] >= CRASHES)
    outcome.left = [job.name for job in waiting]
    return outcome


def _one_worker(
    command: Sequence[str],
    options: dict[str, Any],
    waiting: list[ShapeJob],
    outcome: Outcome,
    until: float,
    peer_seconds: float,
    heard: Callable[[ShapeJob, Told], None],
) -> tuple[str, str]:
    """Hear one worker to its end, and take the jobs that it finished off `waiting`: what it was at, and how it ended."""
    jobs = [job.model_dump() for job in waiting]
    worker = _ComparingProcess(command, {**options, "jobs": jobs, "seconds_left": until - time.monotonic()})
    current, why = START, ""
    try:
        while (told := worker.next(_patience(current, peer_seconds, until))) is not None:
            if waiting:
                heard(waiting[0], told)
            if "row" in told:
                outcome.rows.append(told["row"])
                waiting.pop(0)
            current = told.get("begins", current) if "row" not in told else BETWEEN
            why = told.get("failed", why)
            outcome.environment = told.get("environment", outcome.environment)
    except BaseException:
        worker.kill()
        raise
    ended = worker.close()
    return current, f"{ended}: {why}" if why else ended


def _patience(current: str, peer_seconds: float, until: float) -> float:
    return min(START_S if current == START else peer_seconds, max(0.1, until - time.monotonic()))


def _without(waiting: Sequence[ShapeJob], peer: str, why: str, *, everywhere: bool) -> list[ShapeJob]:
    """The jobs without a peer: the first one, or all."""
    changed = [job.model_copy(update={"without": {**job.without, peer: why}}) for job in waiting]
    return changed if everywhere else [changed[0], *waiting[1:]]


class _ComparingProcess:
    """A process whose lines are read with a time limit."""

    def __init__(self, command: Sequence[str], request: dict[str, Any]) -> None:
        self._process = subprocess.Popen(list(command), stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True)
        self._lines: queue.Queue[str | None] = queue.Queue()
        self._silent = False
        threading.Thread(target=self._read, daemon=True).start()
        assert self._process.stdin is not None
        try:
            self._process.stdin.write(json.dumps(request) + "\n")
            self._process.stdin.close()
        except BrokenPipeError:
            pass  # it ended at once; its exit status is reported

    def next(self, limit_s: float) -> Told | None:
        """What it tells next; None at its end, and where it is silent for too long."""
        try:
            line = self._lines.get(timeout=limit_s)
        except queue.Empty:
            self._silent = True
            return None
        told: Told | None = None if line is None else json.loads(line)
        return told

    def close(self) -> str:
        """End it; how it ended."""
        if self._silent:
            self._process.kill()
        status = self._process.wait()
        return "no answer in time" if self._silent else f"the worker ended with status {status}"

    def kill(self) -> None:
        self._process.kill()
        self._process.wait()

    def _read(self) -> None:
        assert self._process.stdout is not None
        for line in self._process.stdout:
            self._lines.put(line)
        self._lines.put(None)
