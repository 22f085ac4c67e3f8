"""Runs the comparison in a worker process. After a crash or a hang, another one goes on without that peer on that shape."""

import json
import queue
import subprocess
import threading
import time
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any

from contract.base import Record

SILENCE_S = 90.0  # a worker that says nothing for so long hangs
CRASHES = 3  # of one peer, after which it is left out of all shapes
START, RACE, BETWEEN = "start", "race", "between two shapes"  # what a worker is at when no peer is at work


class ShapeJob(Record):
    """One shape for the worker. `without`: peers that are left out of it, and why."""

    shape: str
    element: str = "f16"
    without: dict[str, str] = {}


@dataclass
class Outcome:
    """`rows`: as the worker told them. `environment`: where they were measured. `left`: shapes that time did not reach."""

    rows: list[dict[str, Any]] = field(default_factory=list)
    environment: dict[str, Any] | None = None
    left: list[str] = field(default_factory=list)
    troubles: list[str] = field(default_factory=list)


def supervise(command: Sequence[str], jobs: Sequence[ShapeJob], options: dict[str, Any], seconds: float) -> Outcome:
    """The rows of as many jobs as fit into the seconds.

    The command reads a JSON line with `options` and `jobs`, and answers with one JSON line for each thing that happens:
    `environment`, `begins` (a peer, or one of `START` and `RACE`), `row`, or `failed` (why it ends).
    """
    outcome, waiting, crashes = Outcome(), list(jobs), Counter[str]()
    until = time.monotonic() + seconds
    while waiting and time.monotonic() < until:
        worker = _ComparingProcess(
            command, {**options, "jobs": [job.model_dump() for job in waiting], "seconds_left": until - time.monotonic()}
        )
        current, why = START, ""
        while (told := worker.next(min(SILENCE_S, max(0.1, until - time.monotonic())))) is not None:
            if "row" in told:
                outcome.rows.append(told["row"])
                waiting.pop(0)
            current = told.get("begins", current) if "row" not in told else BETWEEN
            why = told.get("failed", why)
            outcome.environment = told.get("environment", outcome.environment)
        ended = worker.close()
        ended = f"{ended}: {why}" if why else ended
        if waiting and time.monotonic() < until:
            outcome.troubles.append(f"{waiting[0].shape}, {current}: {ended}")
            crashes[current] += 1
            if current == START or crashes[BETWEEN] + crashes[RACE] > CRASHES:
                break
            waiting = _without(waiting, current, ended, everywhere=crashes[current] >= CRASHES)
    outcome.left = [job.shape for job in waiting]
    return outcome


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

    def next(self, limit_s: float) -> dict[str, Any] | None:
        """What it tells next; None at its end, and where it is silent for too long."""
        try:
            line = self._lines.get(timeout=limit_s)
        except queue.Empty:
            self._silent = True
            return None
        told: dict[str, Any] | None = None if line is None else json.loads(line)
        return told

    def close(self) -> str:
        """End it; how it ended."""
        if self._silent:
            self._process.kill()
        status = self._process.wait()
        return "no answer in time" if self._silent else f"the worker ended with status {status}"

    def _read(self) -> None:
        assert self._process.stdout is not None
        for line in self._process.stdout:
            self._lines.put(line)
        self._lines.put(None)
