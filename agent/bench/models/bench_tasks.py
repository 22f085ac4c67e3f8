"""The tasks of the bench. They change only with their date, so that figures of one date can be compared."""

from collections.abc import Sequence
from functools import cache
from pathlib import Path

from cudal2_agent.contract.base import Record
from cudal2_agent.contract.errors import UsageError
from cudal2_agent.contract.records.task import GemmTask


class BenchTask(Record):
    """`about`: what decides the time of its class of shapes."""

    name: str
    about: str
    task: GemmTask


class BenchTasks(Record):
    """The tasks of a date. Tasks of one architecture stand together."""

    date: str
    tasks: tuple[BenchTask, ...]


@cache
def bench_tasks() -> BenchTasks:
    return BenchTasks.model_validate_json(Path(__file__).with_name("tasks.json").read_text(encoding="utf-8"))


def choose_tasks(names: Sequence[str]) -> tuple[BenchTask, ...]:
    """The named tasks in the bench's order; all where none is named. Raises: UsageError."""
    known = bench_tasks().tasks
    unknown = set(names) - {one.name for one in known}
    if unknown:
        offered = ", ".join(one.name for one in known)
        raise UsageError(f"--tasks {sorted(unknown)[0]!r} is not known; choose from {offered}")
    return tuple(one for one in known if not names or one.name in names)
