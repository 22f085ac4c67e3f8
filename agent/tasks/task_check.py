"""Checks of problem files: whether each is a task, and whether the tests of the task tell wrong programs from right ones."""

import time
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Literal, NamedTuple

from cudal2_agent.agent.tasks.problem_sources import Problem
from cudal2_agent.contract.base import Record, digest
from cudal2_agent.contract.errors import UsageError
from cudal2_agent.contract.records.module_graph import FalseAnswer, Soundness
from cudal2_agent.contract.records.module_task import Arithmetic, ModuleTask
from cudal2_agent.contract.records.task import Arch, TimingMode
from cudal2_agent.sandbox.modules.tracing.tracer import Tracer

# Elements of all results: wrong programs are tried at sizes with about so many; at larger ones where small sizes tell nothing.
CHECKED_WORK, MORE_WORK = 1 << 18, 1 << 21

Check = Callable[[ModuleTask, int], Soundness]


class TaskRow(Record):
    """What was found of one problem. `key`: of its text and how it was asked; a later check does not repeat it.

    `dims`: the sizes at which wrong programs were tried, where these are not the file's.
    """

    name: str
    key: str
    status: Literal["sound", "unsound", "unchecked", "untraceable"]
    reason: str = ""
    operations: int = 0
    accepted: tuple[FalseAnswer, ...] = ()
    dims: dict[str, int] = {}
    seconds: float

    @property
    def is_task(self) -> bool:
        return self.status != "untraceable"


class CheckHow(NamedTuple):
    """`soundness`: None to trace only."""

    arithmetic: Arithmetic = Arithmetic.F32
    training: bool = False
    seed: int = 0
    soundness: Check | None = None
    arch: Arch = Arch.SM_90A
    mode: TimingMode = TimingMode.OFFLINE


class CheckRows(NamedTuple):
    """Rows of earlier checks, and how one is kept for later ones."""

    held: Sequence[TaskRow]
    add: Callable[[TaskRow], None]


def check_problems(
    problems: Sequence[Problem], tracer: Tracer, read: Callable[[Path], str], how: CheckHow, rows: CheckRows | None
) -> Iterator[TaskRow]:
    """A row for each problem, in order. `rows`: earlier ones, to which new ones are added.

    Raises: UsageError for rows that cannot be used; MachineError, WorkerError.
    """
    known = {row.key: row for row in (rows.held if rows else ())}
    for problem in problems:
        started = time.monotonic()
        try:
            text = read(problem.path)
        except UsageError as exc:
            yield TaskRow(name=problem.name, key="", status="untraceable", reason=str(exc), seconds=0.0)
            continue
        asked = [problem.name, text, how.arithmetic, how.training, how.seed if how.soundness else None]
        key = digest(asked)
        if key in known:
            yield known[key]
            continue
        row, _ = checked(problem.name, text, tracer, how, key, started)
        if rows:
            rows.add(row)
        yield row


def checked(name: str, text: str, tracer: Tracer, how: CheckHow, key: str, started: float) -> tuple[TaskRow, ModuleTask | None]:
    """The row of one problem, and its task; None where it is none. Raises: MachineError, WorkerError."""
    try:
        task = tracer.trace(text, name, arithmetic=how.arithmetic, training=how.training, arch=how.arch, mode=how.mode)
    except UsageError as exc:
        reason = str(exc).removeprefix(f"{name}: ")
        return TaskRow(name=name, key=key, status="untraceable", reason=reason, seconds=time.monotonic() - started), None
    found, dims = Soundness(status="unchecked"), task.dims
    if how.soundness is not None:
        found, dims = soundness_of(task, tracer, how.soundness, how.seed)
    row = TaskRow(
        name=name,
        key=key,
        status=found.status,
        reason=found.reason,
        operations=len(task.graph.nodes),
        accepted=found.accepted,
        dims={} if dims == task.dims else dims,
        seconds=time.monotonic() - started,
    )
    return row, task


def soundness_of(task: ModuleTask, tracer: Tracer, check: Check, seed: int) -> tuple[Soundness, dict[str, int]]:
    """Whether a task's tests refuse wrong programs, and the sizes at which they were tried.

    Where small sizes do not show a sound task, larger ones are tried: groups may shrink to one element, sums to none.
    """
    found, dims = Soundness(status="unchecked"), task.dims
    for work in (CHECKED_WORK, MORE_WORK):
        tried = dims
        try:
            small = tracer.reduced(task, work)
            if work > CHECKED_WORK and small.dims == dims:
                break
            tried = small.dims
            found, dims = check(small, seed), tried
        except (UsageError, ValueError) as exc:  # an operation that its values do not suit
            if not found.reason:
                found, dims = Soundness(status="unchecked", reason=str(exc).removeprefix(f"{task.name}: ")), tried
        if found.status == "sound":
            break
    return found, dims
