"""Scores over scripted sandboxes: values, the cache, several workers, workers that die, and a score that is killed."""

import math
import os
import subprocess
import sys
import threading
import time
from pathlib import Path

import pytest

from cudal2_agent.agent.learning.environment.sandbox_score import SandboxScore
from cudal2_agent.agent.learning.environment.score_cache import ScoreCache
from cudal2_agent.agent.learning.environment.scoring_process import ScoringProcess
from cudal2_agent.agent.learning.environment.scoring_sandbox import ScoringSandbox
from cudal2_agent.contract.errors import MachineError, UsageError, WorkerError
from cudal2_agent.contract.events import Notice, WorkerRestarted
from cudal2_agent.contract.records.evaluation import CompileFailed, Crashed, Measured, TestResult, Wrong
from cudal2_agent.contract.records.task import Arch
from cudal2_agent.contract.reward.reward import FLOOR
from tests.agent.learning.environment.scripted_scoring import (
    BREAKS,
    KILLS,
    KILLS_ONCE,
    SLOW,
    LoggedSandbox,
    candidates,
    evaluated,
    in_process,
    open_broken,
    order,
    processes,
)
from tests.doubles import CHIP, INSPECTION, PASSED, TASK, ScriptedSandbox, candidate, unmeasured

ROOT = Path(__file__).parents[4]


def free(number: int):
    """A kernel that a model wrote."""
    one = candidate(number)
    return one.model_copy(update={"origin": one.origin.model_copy(update={"schedule": None})})


def test_values_and_what_they_rest_on(tmp_path: Path) -> None:
    score = in_process(tmp_path)
    fast, slow, failed, again = score.score(TASK, candidates(0, 10, 3, 0))
    assert score.chip == CHIP
    assert score.measures
    assert (fast.basis, slow.basis, failed.basis) == ("measured", "measured", "failed")
    assert fast.value == pytest.approx(1.5 * math.tanh(math.log(10 / 5) / 1.5))
    assert slow.value == pytest.approx(1.5 * math.tanh(math.log(10 / 15) / 1.5))
    assert failed.value == FLOOR
    assert isinstance(failed.evaluation, CompileFailed)
    assert again == fast
    assert [one.candidate_id for one in (fast, slow, failed)] == [one.id for one in candidates(0, 10, 3)]
    assert [number for number, _ in evaluated(tmp_path)] == [0, 10], "equal candidates are evaluated once"


def test_trusted_kernels_are_screened_and_others_are_proved_twice(tmp_path: Path) -> None:
    refused = Wrong(test=TestResult(tier="exact", name="zero-one", passed=False), tests=(PASSED,), inspection=INSPECTION)
    sandbox = ScriptedSandbox({1: 5.0, 2: 5.0, 4: 5.0, 5: 5.0}, witness={4: refused, 5: unmeasured(5.0)})
    events: list[Notice] = []
    score = in_process(tmp_path, sandbox, events.append)  # type: ignore[arg-type]
    outcomes = score.score(TASK, [candidate(1), free(2), free(4), free(5)])
    assert sorted(sandbox.evaluated) == [(1, "screen"), (2, "quick"), (4, "quick"), (5, "quick")]
    assert sandbox.witnessed == [2, 4, 5]
    assert [one.basis for one in outcomes] == ["measured", "measured", "failed", None]
    assert outcomes[1].value == outcomes[0].value
    assert outcomes[3].value is None, "without a second witness nothing is known, which is not 0"
    [notice] = events
    assert notice.message.startswith("no value: no second witness confirms a kernel that a model wrote: the emulator did not")
    again = score.score(TASK, [candidate(1), free(2), free(4), free(5)])
    assert [one.cached for one in again] == [True, True, True, False], "what is not known yet is evaluated again"


def test_an_implausible_time_needs_no_witness(tmp_path: Path) -> None:
    sandbox = ScriptedSandbox({2: 0.01})
    [outcome] = in_process(tmp_path, sandbox).score(TASK, [free(2)])
    assert (outcome.value, outcome.basis) == (FLOOR, "failed")
    assert isinstance(outcome.evaluation, Measured)
    assert sandbox.witnessed == []


def test_without_a_gpu_the_value_is_of_a_predicted_time(tmp_path: Path) -> None:
    score = in_process(tmp_path, LoggedSandbox(tmp_path, emulates=True))
    fast, slow, failed = score.score(TASK, candidates(0, 10, 3))
    assert not score.measures
    assert (fast.basis, slow.basis, failed.basis) == ("predicted", "predicted", "failed")
    assert fast.value is not None
    assert slow.value is not None
    assert 0 > fast.value > slow.value > FLOOR == failed.value


def test_a_machine_that_executes_nothing_is_refused(tmp_path: Path) -> None:
    with pytest.raises(UsageError, match="a GPU or the emulator"):
        in_process(tmp_path, ScriptedSandbox(can_execute=False))


def test_a_task_of_another_target_is_refused(tmp_path: Path) -> None:
    with pytest.raises(UsageError, match=r"for sm_90a, the task for sm_80"):
        in_process(tmp_path).score(TASK.model_copy(update={"arch": Arch.SM_80}), candidates(0))


def test_another_process_answers_from_the_cache(tmp_path: Path) -> None:
    with processes(tmp_path) as score:
        first = score.score(TASK, candidates(0, 3))
    second = in_process(tmp_path).score(TASK, candidates(0, 3))
    assert [one.cached for one in first] == [False, False]
    assert [one.cached for one in second] == [True, True]
    unlike = {"cached": False, "seconds": 0.0, "executed_s": 0.0}
    assert [one.model_copy(update=unlike) for one in second] == [one.model_copy(update=unlike) for one in first]
    [(number, process)] = evaluated(tmp_path)
    assert number == 0
    assert process != os.getpid()


def test_the_emulator_and_a_gpu_share_no_entry(tmp_path: Path) -> None:
    in_process(tmp_path).score(TASK, candidates(0))
    [proved] = in_process(tmp_path, LoggedSandbox(tmp_path, emulates=True)).score(TASK, candidates(0))
    assert (proved.cached, proved.basis) == (False, "predicted")


def test_candidates_are_shared_out_to_all_processes(tmp_path: Path) -> None:
    with processes(tmp_path, 2) as score:
        outcomes = score.score(TASK, candidates(*range(4, 10)))
    assert [one.value for one in outcomes] == sorted((one.value for one in outcomes), reverse=True)
    assert len({process for _, process in evaluated(tmp_path)}) == 2


def test_a_process_that_dies_is_replaced_and_its_candidates_are_scored_again(tmp_path: Path) -> None:
    events: list[object] = []
    with processes(tmp_path, 1, events.append) as score:
        outcomes = score.score(TASK, candidates(1, KILLS_ONCE, 2))
        [deadly] = score.score(TASK, candidates(KILLS))
        [later] = score.score(TASK, candidates(6))
    assert [one.basis for one in (*outcomes, deadly, later)] == ["measured", "measured", "measured", "failed", "measured"]
    assert isinstance(deadly.evaluation, Crashed)
    assert deadly.evaluation.fault == "while score: its scoring process was lost twice: signal 9"
    notice, *lost = events
    assert notice == Notice(message="there is no jail"), "what each process says is told once"
    assert len(lost) == 3
    assert all(isinstance(event, WorkerRestarted) and "signal 9" in event.reason for event in lost)
    tried = evaluated(tmp_path)
    assert [[number for number, _ in tried].count(each) for each in (KILLS_ONCE, KILLS)] == [2, 2]
    assert len({process for _, process in tried}) == 4, "a process is started again only where one was lost"


def test_a_failing_machine_is_an_error_of_one_line_and_the_next_call_works(tmp_path: Path) -> None:
    for score, close in ((in_process(tmp_path), None), (processes(tmp_path), True)):
        opened = score.__enter__() if close else score
        with pytest.raises(MachineError, match=r"^the driver was lost$"):
            opened.score(TASK, candidates(BREAKS))
        assert opened.score(TASK, candidates(7))[0].basis == "measured"
        if close:
            score.__exit__(None, None, None)


def test_a_process_that_cannot_open_its_sandbox_says_why(tmp_path: Path) -> None:
    with pytest.raises(MachineError, match=r"^there is no driver$"):
        SandboxScore([ScoringProcess(order(tmp_path), open_broken)], ScoreCache(tmp_path / "scores.sqlite"), Arch.SM_90A)


def test_a_score_that_was_closed_says_so(tmp_path: Path) -> None:
    with processes(tmp_path) as score:
        pass
    with pytest.raises(WorkerError, match="closed"):
        score.score(TASK, candidates(1))


def test_closing_waits_for_the_candidate_in_flight_alone(tmp_path: Path) -> None:
    worker = ScoringSandbox(LoggedSandbox(tmp_path))
    score = SandboxScore([worker], ScoreCache(tmp_path / "scores.sqlite"), Arch.SM_90A)
    failures: list[Exception] = []

    def run() -> None:
        try:
            score.score(TASK, candidates(*range(SLOW, SLOW + 6)))
        except WorkerError as exc:
            failures.append(exc)

    thread = threading.Thread(target=run)
    thread.start()
    wait_until(lambda: bool(evaluated(tmp_path)))
    score.close()
    thread.join(5)
    assert [str(failure) for failure in failures] == ["the score was closed"]
    assert len(evaluated(tmp_path)) < 4


def test_two_threads_evaluate_a_candidate_once(tmp_path: Path) -> None:
    score = in_process(tmp_path)
    found: list[object] = []
    threads = [threading.Thread(target=lambda: found.append(score.score(TASK, candidates(SLOW, 1)))) for _ in range(2)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(30)
    assert sorted(number for number, _ in evaluated(tmp_path)) == [1, SLOW]
    assert len(found) == 2


def test_a_killed_score_loses_only_what_was_in_flight(tmp_path: Path) -> None:
    """Its processes end with it, and the next one goes on from the cache."""
    numbers = [str(number) for number in range(SLOW, SLOW + 8)]
    command = [sys.executable, "-m", "tests.agent.learning.environment.scripted_scoring", str(tmp_path), *numbers]
    with subprocess.Popen(command, cwd=ROOT) as scorer:
        wait_until(lambda: len(evaluated(tmp_path)) >= 6)
        scorer.kill()
    wait_until(lambda: not any(_runs(process) for _, process in evaluated(tmp_path)))
    before = evaluated(tmp_path)
    with processes(tmp_path) as score:
        outcomes = score.score(TASK, candidates(*map(int, numbers)))
    assert all(one.basis == "measured" for one in outcomes)
    assert sum(one.cached for one in outcomes) >= len(before) - 4, "two were in flight, and two on their way to the file"
    assert len(evaluated(tmp_path)) == len(before) + sum(not one.cached for one in outcomes)


def wait_until(condition) -> None:
    deadline = time.monotonic() + 30
    while not condition():
        assert time.monotonic() < deadline
        time.sleep(0.02)


def _runs(process: int) -> bool:
    try:
        os.kill(process, 0)
    except ProcessLookupError:
        return False
    return True
