"""The worker processes split ahead of the caller, and none outlives the run, however it ends."""

import os
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from cudal2_agent.contract.errors import KnowledgeError
from cudal2_agent.contract.records.knowledge import SplitFile
from cudal2_agent.indexer.workers import MAX_WORKER_BYTES, split_files
from tests.indexer.doubles import split_badly, split_whole

ROOT = Path(__file__).resolve().parents[2]
RUN = """
import sys
from pathlib import Path
from cudal2_agent.indexer.workers import MAX_WORKER_BYTES, split_files
from tests.indexer.doubles import split_badly
if __name__ == "__main__":
    for outcome in split_files(sys.argv[2:], Path(sys.argv[1]), split_badly, 2, 600.0):
        print(outcome.path, flush=True)
"""


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    for index in range(6):
        (tmp_path / f"{index}.hpp").write_text(f"int a{index};\n")
    (tmp_path / "hangs.hpp").write_text("int a;\n")
    return tmp_path


def leave_a_mark(path: str, data: bytes) -> SplitFile:
    Path(data.decode().strip()).touch()
    return split_whole(path, data)


def test_splitting_goes_on_while_the_caller_is_busy(tmp_path: Path) -> None:
    paths = [f"{index}.hpp" for index in range(6)]
    for path in paths:
        (tmp_path / path).write_text(f"{tmp_path / path}.done\n")
    outcomes = split_files(paths, tmp_path, leave_a_mark, 2, 60)
    next(outcomes)
    deadline = time.monotonic() + 30
    while len(list(tmp_path.glob("*.done"))) < 6 and time.monotonic() < deadline:
        time.sleep(0.05)
    assert len(list(tmp_path.glob("*.done"))) == 6
    assert len(list(outcomes)) == 5


def test_every_path_comes_once(folder: Path) -> None:
    paths = [f"{index}.hpp" for index in range(6)]
    outcomes = list(split_files(paths, folder, split_whole, 4, 60))
    assert sorted(outcome.path for outcome in outcomes) == paths
    assert all(outcome.split is not None and outcome.split.path == outcome.path for outcome in outcomes)


def take_too_much(path: str, data: bytes) -> SplitFile:
    bytearray(MAX_WORKER_BYTES)
    return split_whole(path, data)


def test_a_file_that_takes_too_much_memory_is_left_out(folder: Path) -> None:
    outcomes = list(split_files(["0.hpp", "1.hpp"], folder, take_too_much, 1, 60))
    assert {outcome.reason for outcome in outcomes} == {"the splitter failed with MemoryError"}


def test_a_file_that_is_gone_is_the_files_fault(folder: Path) -> None:
    (outcome,) = split_files(["gone.hpp"], folder, split_whole, 1, 60)
    assert (outcome.unreadable, outcome.reason) == (True, "cannot be read: No such file or directory")


def test_closing_early_ends_a_worker_that_hangs(folder: Path) -> None:
    outcomes = split_files(["0.hpp", "hangs.hpp"], folder, split_badly, 2, 600)
    assert next(outcomes).path == "0.hpp"
    started = time.monotonic()
    outcomes.close()
    assert time.monotonic() - started < 10


def test_processes_that_the_system_refuses_are_an_error(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def refuse(*_: object) -> None:
        raise BlockingIOError(11, "Resource temporarily unavailable")

    monkeypatch.setattr("multiprocessing.context.SpawnProcess.start", refuse)
    with pytest.raises(KnowledgeError, match="cannot be started: Resource temporarily unavailable"):
        list(split_files(["0.hpp"], folder, split_whole, 1, 60))


@pytest.fixture
def running(folder: Path) -> Iterator[subprocess.Popen[str]]:
    """A run with one worker in a file that hangs."""
    script = folder / "run.py"
    script.write_text(RUN)
    command = [sys.executable, str(script), str(folder), "hangs.hpp", "0.hpp"]
    with subprocess.Popen(
        command,
        cwd=ROOT,
        env={**os.environ, "PYTHONPATH": str(ROOT)},
        text=True,
        start_new_session=True,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
    ) as process:
        assert process.stdout is not None
        assert process.stdout.readline() == "0.hpp\n"
        yield process
        process.kill()


def test_ctrl_c_ends_the_run_and_its_workers_with_one_traceback(running: subprocess.Popen[str]) -> None:
    os.killpg(running.pid, signal.SIGINT)  # to every process of the group, as a terminal does
    _, said = running.communicate(timeout=30)
    assert said.count("Traceback") == 1
    assert said.rstrip().endswith("KeyboardInterrupt")
    assert not _group(running.pid)


def test_workers_end_when_their_parent_is_killed(running: subprocess.Popen[str]) -> None:
    assert _group(running.pid)
    running.kill()
    running.wait(30)
    deadline = time.monotonic() + 10
    while (left := _group(running.pid)) and time.monotonic() < deadline:
        time.sleep(0.05)
    for worker in left:
        os.kill(worker, signal.SIGKILL)
    assert left == []


def _group(leader: int) -> list[int]:
    """Workers in the leader's process group."""
    found = []
    for entry in Path("/proc").glob("[0-9]*"):
        try:
            group = int((entry / "stat").read_text().rpartition(")")[2].split()[2])
            command = (entry / "cmdline").read_bytes()
        except OSError:
            continue
        if group == leader and b"spawn_main" in command:
            found.append(int(entry.name))
    return found
