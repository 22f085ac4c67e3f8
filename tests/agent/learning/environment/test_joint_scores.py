"""Scores of several tasks in one call: builds overlap, executions do not, and a fault costs its own candidate alone."""

import threading
import time
from collections.abc import Iterator, Sequence
from pathlib import Path

import pytest

from cudal2_agent.agent.learning.environment.sandbox_score import SandboxScore
from cudal2_agent.agent.learning.environment.score_cache import ScoreCache
from cudal2_agent.agent.learning.environment.scoring_sandbox import ScoringSandbox
from cudal2_agent.contract.errors import MachineError
from cudal2_agent.contract.records.build import Built
from cudal2_agent.contract.records.candidate import AnyCandidate
from cudal2_agent.contract.records.evaluation import Evaluation, TimedOut
from cudal2_agent.contract.records.task import Arch, GemmTask
from cudal2_agent.contract.reward.score import Scored, TaskCandidates
from tests.agent.learning.environment.scripted_scoring import KILLS_ONCE, LoggedSandbox, candidates, evaluated, processes
from tests.doubles import TASK, number_of

OTHERS = [TASK.model_copy(update={"m": TASK.m * factor}) for factor in (2, 4, 8)]
PATIENCE_S = 20.0


class MeetingSandbox(LoggedSandbox):
    """Builds of `meeting` tasks end only once all of them go on. Those of `hangs` reach their time limit."""

    def __init__(self, home: Path, meeting: int, hangs: Sequence[GemmTask] = ()) -> None:
        super().__init__(home)
        self._meet = threading.Barrier(meeting)
        self._hangs = hangs
        self.error: MachineError | None = None
        self.begun: list[int] = []
        self.executing = self.most_executing = 0

    def build(
        self, candidates: Sequence[AnyCandidate], task: GemmTask, cancel: threading.Event | None = None
    ) -> Iterator[tuple[int, Built | Evaluation]]:
        self.begun.append(task.m)
        self._meet.wait(PATIENCE_S)
        if self.error is not None:
            raise self.error
        if task in self._hangs:
            yield from ((place, TimedOut(stage="compile", limit_s=60.0)) for place, _ in enumerate(candidates))
        else:
            yield from super().build(candidates, task, cancel)

    def screen(self, built: Sequence[Built], task: GemmTask) -> Iterator[tuple[int, Evaluation]]:
        for outcome in super().screen(built, task):
            self.executing += 1
            self.most_executing = max(self.executing, self.most_executing)
            time.sleep(0.01)
            self.executing -= 1
            yield outcome


def score_over(home: Path, sandbox: LoggedSandbox, jobs: int = 16) -> SandboxScore:
    return SandboxScore([ScoringSandbox(sandbox, jobs)], ScoreCache(home / "scores.sqlite"), Arch.SM_90A)


def groups(*asked: tuple[GemmTask, tuple[int, ...]]) -> list[TaskCandidates]:
    return [TaskCandidates(task=task, candidates=tuple(candidates(*numbers))) for task, numbers in asked]


def values(outcomes: list[list[Scored]]) -> list[list[float | None]]:
    return [[one.value for one in of_group] for of_group in outcomes]


def test_builds_of_all_tasks_go_on_at_once_and_kernels_run_one_by_one(tmp_path: Path) -> None:
    sandbox = MeetingSandbox(tmp_path, meeting=3)
    asked = groups((TASK, (1, 2)), (OTHERS[0], (4, 3)), (OTHERS[1], (5, 1)))
    found = score_over(tmp_path, sandbox).score_groups(asked)
    assert [[one.candidate_id for one in of_group] for of_group in found] == [
        [one.id for one in each.candidates] for each in asked
    ]
    assert [[one.basis for one in of_group] for of_group in found] == [
        ["measured"] * 2,
        ["measured", "failed"],
        ["measured"] * 2,
    ]
    assert sandbox.most_executing == 1
    alone = LoggedSandbox(tmp_path / "alone")
    (tmp_path / "alone").mkdir()
    one_by_one = score_over(tmp_path / "alone", alone)
    assert values(found) == [[one.value for one in one_by_one.score(each.task, each.candidates)] for each in asked]


def test_of_the_seconds_of_an_answer_those_of_execution_are_told(tmp_path: Path) -> None:
    [[one], [other]] = score_over(tmp_path, MeetingSandbox(tmp_path, meeting=2)).score_groups(
        groups((TASK, (1,)), (OTHERS[0], (2,)))
    )
    assert 0.01 <= one.executed_s <= one.seconds < other.seconds
    assert 0.01 <= other.executed_s < other.seconds


def test_no_more_tasks_are_built_than_the_machine_has_jobs_for(tmp_path: Path) -> None:
    """With two jobs the builds of a third task wait until fewer than two go on."""
    sandbox = MeetingSandbox(tmp_path, meeting=2)
    asked = groups((TASK, (1,)), (OTHERS[0], (2,)), (OTHERS[1], (4,)), (OTHERS[2], (5,)))
    found = score_over(tmp_path, sandbox, jobs=2).score_groups(asked)
    assert [one.basis for of_group in found for one in of_group] == ["measured"] * 4
    assert set(sandbox.begun[:2]) == {TASK.m, OTHERS[0].m}


def test_a_build_that_hangs_costs_its_own_candidates(tmp_path: Path) -> None:
    sandbox = MeetingSandbox(tmp_path, meeting=2, hangs=[TASK])
    [[slow], [other]] = score_over(tmp_path, sandbox).score_groups(groups((TASK, (1,)), (OTHERS[0], (1,))))
    assert (slow.basis, other.basis) == ("failed", "measured")
    assert isinstance(slow.evaluation, TimedOut)


def test_a_machine_that_fails_in_a_build_is_one_line_and_no_build_is_left(tmp_path: Path) -> None:
    sandbox = MeetingSandbox(tmp_path, meeting=2)
    sandbox.error = MachineError("the disk is full")
    score = score_over(tmp_path, sandbox)
    asked = groups((TASK, (1,)), (OTHERS[0], (2,)))
    with pytest.raises(MachineError, match=r"^the disk is full$"):
        score.score_groups(asked)
    assert not [thread for thread in threading.enumerate() if thread.name == "batch-build"]
    sandbox.error = None
    assert [one.basis for of_group in score.score_groups(asked) for one in of_group] == ["measured"] * 2


def test_what_is_known_of_some_tasks_is_not_built_again(tmp_path: Path) -> None:
    score = score_over(tmp_path, LoggedSandbox(tmp_path))
    score.score(TASK, candidates(1, 2))
    found = score.score_groups(groups((TASK, (2, 4)), (OTHERS[0], (2,)), (TASK, (1, 2))))
    assert [[one.cached for one in of_group] for of_group in found] == [[True, False], [False], [True, True]]
    assert sorted(number for number, _ in evaluated(tmp_path)) == [1, 2, 2, 4]


def test_a_process_that_is_killed_between_tasks_is_replaced_and_answers_stay_with_their_tasks(tmp_path: Path) -> None:
    """Two processes share four tasks; one dies in the middle of its share."""
    asked = groups((TASK, (1, 2)), (OTHERS[0], (KILLS_ONCE, 4)), (OTHERS[1], (5,)), (OTHERS[2], (6, 1)))
    with processes(tmp_path, 2) as score:
        found = score.score_groups(asked)
    assert [one.basis for of_group in found for one in of_group] == ["measured"] * 7
    times_us = [[one.evaluation.time_us for one in of_group] for of_group in found]
    assert times_us == [[6.0, 7.0], [20.0, 9.0], [10.0], [11.0, 6.0]]
    assert [number_of(one) for one in asked[3].candidates] == [6, 1]
    assert len({process for _, process in evaluated(tmp_path)}) == 3
