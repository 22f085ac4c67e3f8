"""Draws problems from the grammar until as many as wanted are sound tasks of their own.

What is drawn depends on the seed, the number of the task and the attempt only. A draw that is refused is replaced by the next
attempt of its number, so that no other task changes.
"""

import math
import threading
import time
from collections import Counter
from collections.abc import Callable, Iterable, Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from typing import Literal, NamedTuple

from cudal2_agent.agent.tasks.grammar.problems import DrawnProblem, problem
from cudal2_agent.agent.tasks.held_out import HeldOut
from cudal2_agent.agent.tasks.signature import signature, sizes_hash, text_hash
from cudal2_agent.agent.tasks.task_check import CheckHow, TaskRow, checked
from cudal2_agent.contract.base import Record, digest
from cudal2_agent.contract.errors import UsageError
from cudal2_agent.contract.records.module_graph import Soundness
from cudal2_agent.contract.records.module_task import ModuleTask
from cudal2_agent.sandbox.modules.tracing.tracer import Tracer

MOST_ATTEMPTS = 200
MOST_BYTES = 4 << 30  # of all buffers of a task
MOST_FLOPS = 1 << 39
MOST_CHECKED = 1 << 21  # elements of all results at the sizes of the check, beyond which it would take minutes
_AHEAD = 3  # numbers that are checked before they are needed, for each job

Refusal = Literal[
    "untraceable", "unsound", "unchecked", "redundant", "too large", "held-out text", "held-out operations", "repeated"
]


class DrawRow(Record):
    """What was found of one draw. `signature`, `sizes`: hashes of its operations, and of these with shapes; or empty."""

    seed: int
    number: int
    attempt: int
    text: str
    check: TaskRow
    signature: str = ""
    sizes: str = ""
    bytes: int = 0
    flops: int = 0

    @property
    def place(self) -> tuple[int, int, str]:
        """What it is known by: a grammar that draws another text there draws another problem."""
        return self.number, self.attempt, self.check.key


class Accepted(NamedTuple):
    """A task, and why earlier attempts of its number were refused."""

    number: int
    drawn: DrawnProblem
    row: DrawRow
    refused: tuple[Refusal, ...]


Check = Callable[[DrawnProblem, int, int], DrawRow]  # a problem with its number and attempt


class Generation:
    """The tasks of a seed, in the order of their numbers. `rows`: of earlier calls. `add`: keeps one for later calls."""

    def __init__(self, seed: int, check: Check, rows: Iterable[DrawRow], add: Callable[[DrawRow], None]) -> None:
        self._seed, self._check, self._add = seed, check, add
        self._known = {row.place: row for row in rows}
        self._lock = threading.Lock()

    def accepted(self, count: int, jobs: int, held: Iterable[HeldOut]) -> Iterator[Accepted]:
        """Raises: UsageError where a number has no task in MOST_ATTEMPTS; MachineError, WorkerError."""
        held = list(held)
        outside = {name for each in held for name in each.texts}, {name for each in held for name in each.signatures}
        taken: set[str] = set()
        ahead: dict[int, Future[list[tuple[DrawRow, Refusal | None]]]] = {}
        pool = ThreadPoolExecutor(jobs)
        try:
            for number in range(1, count + 1):
                for later in range(number, min(number + _AHEAD * jobs, count + 1)):
                    if later not in ahead:
                        ahead[later] = pool.submit(self._first, later, 0, *outside)
                found = ahead.pop(number).result()
                while found[-1][0].sizes in taken:
                    found[-1] = (found[-1][0], "repeated")
                    found += self._first(number, len(found), *outside)
                row = found[-1][0]
                taken.add(row.sizes)
                refused = tuple(reason for _, reason in found if reason is not None)
                yield Accepted(number, problem(self._seed, number, row.attempt), row, refused)
        finally:
            pool.shutdown(cancel_futures=True)

    def _first(self, number: int, attempt: int, texts: set[str], signatures: set[str]) -> list[tuple[DrawRow, Refusal | None]]:
        """The attempts from this one to the first that is accepted."""
        found: list[tuple[DrawRow, Refusal | None]] = []
        for each in range(attempt, MOST_ATTEMPTS):
            row = self._row(number, each)
            found.append((row, _refusal(row, texts, signatures)))
            if found[-1][1] is None:
                return found
        last = found[-1][1] if found else "repeated"
        raise UsageError(f"task {number} of seed {self._seed} has no sound problem in {MOST_ATTEMPTS} draws; the last: {last}")

    def _row(self, number: int, attempt: int) -> DrawRow:
        drawn = problem(self._seed, number, attempt)
        with self._lock:
            known = self._known.get((number, attempt, draw_key(drawn)))
        if known is not None:
            return known
        row = self._check(drawn, number, attempt)
        with self._lock:
            self._known[row.place] = row
            self._add(row)
        return row


def draw_key(drawn: DrawnProblem) -> str:
    """A hash of the whole text: other sizes are another draw."""
    return digest([drawn.text])


def check_with(tracer: Tracer, soundness: Callable[[ModuleTask, int], Soundness], seed: int) -> Check:
    """Checks draws of a seed."""
    how = CheckHow(soundness=lambda task, seed: soundness(_affordable(task), seed))

    def check(drawn: DrawnProblem, number: int, attempt: int) -> DrawRow:
        row, task = checked(drawn.name, drawn.text, tracer, how, draw_key(drawn), time.monotonic())
        found = DrawRow(seed=seed, number=number, attempt=attempt, text=text_hash(drawn.text), check=row)
        if task is None:
            return found
        of_task = {"signature": signature(task), "sizes": sizes_hash(task), "bytes": task.operand_bytes, "flops": task.flops}
        return found.model_copy(update=of_task)

    return check


def _affordable(task: ModuleTask) -> ModuleTask:
    """The task. Raises: ValueError where its results are too large to try many wrong programs."""
    elements = sum(math.prod(each.shape) for node in task.graph.nodes for each in node.results)
    if elements > MOST_CHECKED:
        raise ValueError(f"its smallest sizes have {elements:,} elements of results")
    return task


def _refusal(row: DrawRow, texts: set[str], signatures: set[str]) -> Refusal | None:
    """Why a draw is no task; None where it is one."""
    if row.text in texts:
        return "held-out text"
    if row.check.status != "sound":
        return row.check.status
    if row.signature in signatures:
        return "held-out operations"
    if row.check.reason:  # names operations that change nothing for any input
        return "redundant"
    return "too large" if row.bytes > MOST_BYTES or row.flops > MOST_FLOPS else None


def counted(found: Iterable[Accepted]) -> dict[str, int]:
    """How many draws were refused, by reason."""
    return dict(Counter(reason for each in found for reason in each.refused).most_common())
