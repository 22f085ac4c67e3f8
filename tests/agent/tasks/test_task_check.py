"""Checks of problem files: rows, and a check that goes on where an earlier one ended."""

from functools import partial
from pathlib import Path
from typing import Any

import pytest

from cudal2_agent.agent.cli.module_flags import read_problem
from cudal2_agent.agent.library.row_file import append_row, read_row_file
from cudal2_agent.agent.tasks.problem_sources import Problem
from cudal2_agent.agent.tasks.task_check import CHECKED_WORK, CheckHow, CheckRows, TaskRow, check_problems
from cudal2_agent.contract.errors import UsageError
from cudal2_agent.contract.records.module_graph import FalseAnswer, Soundness
from cudal2_agent.contract.records.module_task import ModuleTask
from tests.doubles.modules import PROBLEM, relu_of_sum


class Traces:
    """A tracer that knows one task, and refuses every other text."""

    def __init__(self) -> None:
        self.asked: list[str] = []

    def trace(self, problem: str, name: str, **_: Any) -> ModuleTask:
        self.asked.append(name)
        if problem != PROBLEM.format(rows=32):
            raise UsageError(f"{name}: it is no task")
        return relu_of_sum(32)

    def reduced(self, _: ModuleTask, most_work: int) -> ModuleTask:
        assert most_work > 0
        return relu_of_sum(8)


@pytest.fixture
def problems(tmp_path: Path) -> list[Problem]:
    texts = {"good": PROBLEM.format(rows=32), "bad": "nothing", "large": "#" * (300 << 10)}
    for name, text in texts.items():
        (tmp_path / f"{name}.py").write_text(text)
    return [Problem(name, tmp_path / f"{name}.py") for name in texts]


def passes(task: ModuleTask, seed: int) -> Soundness:
    dropped = FalseAnswer(kind="dropped", on="ours", operation="relu")
    return Soundness(status="unsound", reason=f"without relu it passes at {task.dims['rows']}", accepted=(dropped,), seed=seed)


def checked(problems: list[Problem], tracer: Any, rows: Path | None = None, how: CheckHow | None = None) -> list[TaskRow]:
    kept = CheckRows(read_row_file(rows, TaskRow, "tasks check"), partial(append_row, rows)) if rows else None
    return list(check_problems(problems, tracer, read_problem, how or CheckHow(soundness=passes), kept))


def test_a_row_tells_what_was_found(problems: list[Problem]) -> None:
    good, bad, large = checked(problems, Traces())
    assert (good.status, good.reason, good.operations) == ("unsound", "without relu it passes at 8", 2)
    assert (good.dims, good.accepted[0].operation) == ({"rows": 8, "columns": 64}, "relu")
    assert (bad.status, bad.reason) == ("untraceable", "it is no task")
    assert (large.status, "KiB" in large.reason) == ("untraceable", True)


def test_a_check_goes_on_where_it_ended(problems: list[Problem], tmp_path: Path) -> None:
    rows, first, second = tmp_path / "rows.jsonl", Traces(), Traces()
    before = checked(problems[:1], first, rows)
    rows.write_text(rows.read_text() + '{"name": "torn')
    after = checked(problems, second, rows)
    assert (first.asked, second.asked) == (["good"], ["bad"])
    assert after[0] == before[0]
    problems[0].path.write_text("changed")
    third = Traces()
    checked(problems, third, rows)
    assert third.asked == ["good"]


def test_wrong_programs_are_not_tried_where_they_were_not_asked_for(problems: list[Problem]) -> None:
    [good] = checked(problems[:1], Traces(), how=CheckHow())
    assert (good.status, good.operations, good.dims) == ("unchecked", 2, {})


class Shrinks(Traces):
    """A tracer with several sizes of its task."""

    def reduced(self, _: ModuleTask, most_work: int) -> ModuleTask:
        return relu_of_sum(8 if most_work <= CHECKED_WORK else 16)


def test_larger_sizes_are_tried_where_small_ones_tell_nothing(problems: list[Problem]) -> None:
    def tells_at(rows: int, status: str) -> CheckHow:
        def check(task: ModuleTask, seed: int) -> Soundness:
            found = "sound" if task.dims["rows"] >= rows else status
            return Soundness(status=found, reason="" if found == "sound" else "groups of one element", seed=seed)  # type: ignore[arg-type]

        return CheckHow(soundness=check)

    for status in ("unchecked", "unsound"):
        [found] = checked(problems[:1], Shrinks(), how=tells_at(16, status))
        assert (found.status, found.reason, found.dims["rows"]) == ("sound", "", 16)
    [never] = checked(problems[:1], Shrinks(), how=tells_at(64, "unchecked"))
    assert (never.status, never.reason) == ("unchecked", "groups of one element")


def test_sizes_at_which_a_check_failed_are_told_and_not_tried_again(problems: list[Problem]) -> None:
    tried: list[int] = []

    def fails(task: ModuleTask, _: int) -> Soundness:
        tried.append(task.dims["rows"])
        raise UsageError(f"{task.name}: the check took longer than 30 s")

    class OneSize(Traces):
        def reduced(self, *_: object) -> ModuleTask:
            return relu_of_sum(8)

    [row] = checked(problems[:1], OneSize(), how=CheckHow(soundness=fails))
    assert (row.status, row.reason, row.dims["rows"]) == ("unchecked", "the check took longer than 30 s", 8)
    assert tried == [8]
