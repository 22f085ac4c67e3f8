"""`kill -9` during a run: no finished step is lost, and none is repeated."""

import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest

from cudal2_agent.contract.records.evaluation import Measured
from cudal2_agent.contract.records.trajectory import Step
from cudal2_agent.contract.reward.reward import FLOOR
from cudal2_agent.store.store import open_store
from tests.agent.run.killed_run import COUNT, FAILURES
from tests.doubles import number_of

ROOT = Path(__file__).parents[3]
KILLS = (6, COUNT + 1)  # evaluations that have ended when the process is killed: during the search, during the race


def start(home: Path, *words: str) -> subprocess.Popen[bytes]:
    command = [sys.executable, "-m", "tests.agent.run.killed_run", str(home), *words]
    return subprocess.Popen(command, cwd=ROOT, env={**os.environ, "PYTHONPATH": str(ROOT)})


def steps_in(home: Path) -> list[Step]:
    path = home / "trajectories.sqlite"
    if not path.exists():
        return []
    with open_store(f"sqlite:///{path}") as store:
        runs = store.runs()
        return store.steps(runs[0].run_id) if runs else []


def evaluations_in(home: Path) -> int:
    """The number of evaluations that have ended; those that did not compile count as well."""
    path = home / "evaluated.txt"
    return len(FAILURES) + len(path.read_text().splitlines()) if path.exists() else 0


def kill_after(process: subprocess.Popen[bytes], home: Path, count: int) -> list[Step]:
    """The steps that the store held at some time before the kill, which `count` evaluations came before."""
    deadline_s = time.monotonic() + 60
    while evaluations_in(home) < count:
        assert process.poll() is None, "the run ended before it was killed"
        assert time.monotonic() < deadline_s
        time.sleep(0.02)
    seen = steps_in(home)
    process.send_signal(signal.SIGKILL)
    process.wait(10)
    return seen


def unprofiled(steps: list[Step]) -> list[Step]:
    """The steps without what the winner's profile adds at the end."""
    return [step.model_copy(update={"profile": None, "diagnosis": None, "seconds": {}}) for step in steps]


def test_killed_twice_loses_and_repeats_nothing(tmp_path: Path) -> None:
    home, verb, seen = tmp_path / "home", "start", []
    for count in KILLS:
        process = start(home, verb)
        seen = kill_after(process, home, count)
        assert unprofiled(steps_in(home)[: len(seen)]) == unprofiled(seen)
        verb = "resume"
    assert start(home, verb).wait(60) == 0

    steps = steps_in(home)
    assert unprofiled(steps[: len(seen)]) == unprofiled(seen), "a finished step was changed by resuming"
    assert [step.profile is not None for step in steps].count(True) == 1, "the winner has its profile, once"
    assert [step.index for step in steps] == list(range(COUNT + 3))
    search, final = steps[:COUNT], steps[COUNT:]
    assert sorted(number_of(step.candidate) for step in search) == list(range(COUNT))
    assert [number_of(step.candidate) for step in final] == [COUNT - 1, COUNT - 2, COUNT - 3]
    assert [number_of(s.candidate) for s in search if s.evaluation.status == "compile_failed"] == list(FAILURES)

    evaluated = (home / "evaluated.txt").read_text().splitlines()
    screened = [line for line in evaluated if line.endswith("screen")]
    assert len(screened) - len(set(screened)) <= 1, "only an evaluation in flight may run again"
    assert len(evaluated) - len(screened) <= 2 * 3, "and a race in flight"


def proofs_in(home: Path) -> list[str]:
    path = home / "witness.txt"
    return path.read_text().splitlines() if path.exists() else []


def kill_in_proof(process: subprocess.Popen[bytes], home: Path, count: int) -> None:
    """Kill the process during proof number `count`, whichever candidate it proves."""
    deadline_s = time.monotonic() + 60
    while len(proofs_in(home)) < count or proofs_in(home)[-1].startswith("end"):
        assert process.poll() is None, "the run ended before it was killed"
        assert time.monotonic() < deadline_s
        time.sleep(0.01)
    process.send_signal(signal.SIGKILL)
    process.wait(10)


@pytest.mark.slow
def test_killed_in_the_middle_of_a_proof_it_is_made_again_and_no_finished_one_is(tmp_path: Path) -> None:
    home = tmp_path / "home"
    kill_in_proof(start(home, "start", "written"), home, 1)
    assert {step.reward for step in steps_in(home)} == {None, FLOOR}, "what did not compile has the floor, a time nothing yet"
    kill_in_proof(start(home, "resume", "written"), home, 6)
    assert start(home, "resume", "written").wait(60) == 0

    ended = [line for line in proofs_in(home) if line.startswith("end")]
    assert len(ended) == len(set(ended)), "a finished proof was made again"
    steps = steps_in(home)
    proved = {number_of(step.candidate) for step in steps if isinstance(step.evaluation, Measured) and step.evaluation.witness}
    assert {f"end {number}" for number in proved} == set(ended)
    assert all((step.reward is not None) == (number_of(step.candidate) in proved) for step in steps[:COUNT] if has_time(step))
    evaluated = (home / "evaluated.txt").read_text().splitlines()
    assert len(evaluated) == len(set(evaluated)), "no evaluation was in flight"


def has_time(step: Step) -> bool:
    return isinstance(step.evaluation, Measured)
