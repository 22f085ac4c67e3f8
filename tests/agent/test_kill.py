"""`kill -9` in the middle of a run: no finished step is lost, none is repeated."""

import os
import signal
import sqlite3
import subprocess
import sys
import time
from contextlib import closing
from pathlib import Path

from contract.trajectory import Step
from policies.trajectories.store import open_store
from tests.agent.killed_run import COUNT, FAILURES
from tests.doubles import number_of

ROOT = Path(__file__).parents[2]
KILLS = (6, COUNT + 1)  # steps in the store when the process is killed: during the search, during the final measurements


def start(home: Path, verb: str) -> subprocess.Popen[bytes]:
    command = [sys.executable, "-m", "tests.agent.killed_run", str(home), verb]
    return subprocess.Popen(command, cwd=ROOT, env={**os.environ, "PYTHONPATH": str(ROOT)})


def steps_in(home: Path) -> list[Step]:
    path = home / "trajectories.sqlite"
    if not path.exists():
        return []
    with open_store(f"sqlite:///{path}") as store:
        runs = store.runs()
        return store.steps(runs[0].run_id) if runs else []


def count_in(home: Path) -> int:
    """The number of steps, asked often and therefore cheaply."""
    try:
        with closing(sqlite3.connect(f"file:{home / 'trajectories.sqlite'}?mode=ro", uri=True)) as connection:
            return int(connection.execute("SELECT count(*) FROM steps").fetchone()[0])
    except sqlite3.OperationalError:  # not there yet
        return 0


def kill_after(process: subprocess.Popen[bytes], home: Path, count: int) -> list[Step]:
    """The steps that were in the store at some moment before the kill."""
    deadline_s = time.monotonic() + 60
    while count_in(home) < count:
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
        assert steps_in(home)[: len(seen)] == seen
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
    assert len(evaluated) - len(set(evaluated)) <= len(KILLS), "only an evaluation in flight may run again"
