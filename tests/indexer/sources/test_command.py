"""Commands run under a time limit, without a terminal, and leave no process."""

import os
import sys
import time
from pathlib import Path

import pytest

from cudal2_agent.contract.errors import SourceError
from cudal2_agent.indexer.sources.command import run_command


def test_output_and_return_code_come_back(tmp_path: Path) -> None:
    script = "import os, sys; print(os.getcwd()); sys.stderr.buffer.write(b'\\xff'); sys.exit(3)"
    finished = run_command([sys.executable, "-c", script], tmp_path, 30)
    assert (finished.returncode, finished.stdout.strip(), finished.stderr) == (3, str(tmp_path), "\ufffd")


def test_nothing_can_be_asked(tmp_path: Path) -> None:
    script = "import sys; print(repr(sys.stdin.read())); open('/dev/tty')"
    finished = run_command([sys.executable, "-c", script], tmp_path, 30)
    assert finished.stdout.strip() == "''"
    assert "No such device" in finished.stderr


def test_the_limit_ends_the_command_and_its_children(tmp_path: Path) -> None:
    script = "sleep 60 & echo $! > child; wait"
    started = time.monotonic()
    with pytest.raises(SourceError, match=r"git took more than 0\.5 s"):
        run_command(["sh", "-c", script], tmp_path, 0.5)
    assert time.monotonic() - started < 10
    child = int((tmp_path / "child").read_text())
    deadline = time.monotonic() + 5
    while _runs(child) and time.monotonic() < deadline:
        time.sleep(0.05)
    assert not _runs(child)


def test_a_command_that_is_not_there_is_said(tmp_path: Path) -> None:
    with pytest.raises(SourceError, match="no-such-command cannot be started"):
        run_command(["no-such-command"], tmp_path, 1)


def _runs(pid: int) -> bool:
    try:
        os.kill(pid, 0)
        return "Z" not in Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0]
    except (ProcessLookupError, FileNotFoundError):
        return False
