"""Processes that share a GPU alternate; what a turn waits for is known, and a dead process gives its turn up."""

import subprocess
import sys
import time
from pathlib import Path
from types import SimpleNamespace

import pytest

from cudal2_agent.contract.errors import MachineError
from cudal2_agent.sandbox.workers.turns import DeviceTurn, device_id

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


class Driver:
    """`cuda.bindings.driver` with GPUs of these UUIDs."""

    def __init__(self, *uuids: bytes) -> None:
        self._uuids = uuids

    def cuInit(self, _: int) -> tuple[int]:
        return (0 if self._uuids else 100,)

    def cuDeviceGet(self, index: int) -> tuple[int, int | None]:
        return (0, index) if index < len(self._uuids) else (101, None)

    def cuDeviceGetUuid(self, handle: int) -> tuple[int, SimpleNamespace]:
        return 0, SimpleNamespace(bytes=self._uuids[handle])


def test_one_gpu_has_one_turn_whatever_a_process_calls_it(monkeypatch: pytest.MonkeyPatch) -> None:
    first, second = bytes(range(16)), bytes(range(16, 32))
    monkeypatch.setattr("cuda.bindings.driver", Driver(first, second))
    seen_as_second = device_id(1)
    monkeypatch.setattr("cuda.bindings.driver", Driver(second))  # as with CUDA_VISIBLE_DEVICES=1, or its UUID
    assert device_id(0) == seen_as_second == f"gpu-{second.hex()}"


@pytest.mark.parametrize("uuids", [(), (bytes(16),)])
def test_a_gpu_that_is_not_there_goes_by_its_number(monkeypatch: pytest.MonkeyPatch, uuids: tuple[bytes, ...]) -> None:
    monkeypatch.setattr("cuda.bindings.driver", Driver(*uuids))
    assert device_id(3) == "cuda-3"
