"""Processes that share a GPU alternate; what a turn waits for is known, and a dead process gives its turn up."""

import subprocess
import sys
import time
from pathlib import Path

import pytest

from cudal2_agent.contract.errors import MachineError
from cudal2_agent.sandbox.workers.turns import DeviceTurn, visible_name

HOLDER = """
import sys, time
from cudal2_agent.sandbox.workers.turns import DeviceTurn
with DeviceTurn(sys.argv[1], 0).taken():
    print("held", flush=True)
    time.sleep(float(sys.argv[2]))
"""


def holder(folder: Path, seconds: float) -> "subprocess.Popen[str]":
    """A process that holds the turn, once it does."""
    process = subprocess.Popen([sys.executable, "-c", HOLDER, str(folder), str(seconds)], stdout=subprocess.PIPE, text=True)
    assert process.stdout is not None
    assert process.stdout.readline() == "held\n"
    return process


def test_a_turn_waits_for_the_other_process(tmp_path: Path) -> None:
    turn = DeviceTurn(str(tmp_path), 0)
    with holder(tmp_path, 0.4) as other, turn.taken():
        assert other.wait(timeout=10) == 0
    assert 0.05 < turn.waited_s < 10


def test_a_killed_process_gives_up_its_turn(tmp_path: Path) -> None:
    with holder(tmp_path, 60) as other:
        other.kill()
        begin_s = time.monotonic()
        with DeviceTurn(str(tmp_path), 0).taken():
            assert time.monotonic() - begin_s < 10


def test_other_devices_and_no_folder_wait_for_nobody(tmp_path: Path) -> None:
    turns = [DeviceTurn(str(tmp_path), 1), DeviceTurn(None, 0)]
    with holder(tmp_path, 5) as other:
        for turn in turns:
            with turn.taken():
                assert other.poll() is None, "the other process still has its turn"
        other.kill()
    assert all(turn.waited_s < 1 for turn in turns)


def test_a_folder_that_cannot_be_made_is_named(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    with pytest.raises(MachineError, match=r"file/locks.*CUDAL2_HOME"), DeviceTurn(str(tmp_path / "file" / "locks"), 0).taken():
        pass


@pytest.mark.parametrize(
    ("visible", "names"),
    [(None, ["0", "1"]), ("", ["0", "1"]), ("3", ["3", "1"]), ("2, 5", ["2", "5"]), ("GPU-8f/..", ["GPU-8f", "1"])],
)
def test_processes_that_see_one_gpu_each_have_turns_of_their_own(
    monkeypatch: pytest.MonkeyPatch, visible: str | None, names: list[str]
) -> None:
    monkeypatch.delenv("CUDA_VISIBLE_DEVICES", raising=False)
    if visible is not None:
        monkeypatch.setenv("CUDA_VISIBLE_DEVICES", visible)
    assert [visible_name(device) for device in range(2)] == names
