"""Turns on a GPU between processes: what is timed runs while nothing else does, and who shares gives way in mid-work."""

import subprocess
import sys
import time
from pathlib import Path

SHARES = """
import sys, time
from pathlib import Path
from benchmarks.modules.turns import GpuTurn
capturing = [2 if sys.argv[2] == "captures" else 0]
def idle():
    capturing[0] -= 1
    return capturing[0] < 0
turn = GpuTurn(Path(sys.argv[1]), idle)
turn.share()
print("shares", flush=True)
end = time.monotonic() + 0.6
last, gap = time.monotonic(), 0.0
while time.monotonic() < end:
    sum(range(200))
    now = time.monotonic()
    gap, last = max(gap, now - last), now
print(gap, turn.paused_s, turn.held, capturing[0], flush=True)
"""


def sharing(folder: Path, what: str = "computes") -> "subprocess.Popen[str]":
    return subprocess.Popen([sys.executable, "-c", SHARES, str(folder), what], stdout=subprocess.PIPE, text=True)


def alone(folder: Path, seconds: float) -> float:
    """Have the GPU alone in a process of its own; returns how long it waited."""
    code = """
import sys, time
from pathlib import Path
from benchmarks.modules.turns import GpuTurn
turn = GpuTurn(Path(sys.argv[1]), lambda: True)
turn.alone()
time.sleep(float(sys.argv[2]))
turn.leave()
print(turn.waited_s)
"""
    found = subprocess.run([sys.executable, "-c", code, str(folder), str(seconds)], capture_output=True, text=True, check=True)
    return float(found.stdout)


def test_one_that_shares_pauses_in_mid_work_for_one_that_times(tmp_path):
    process = sharing(tmp_path)
    assert process.stdout is not None
    assert process.stdout.readline() == "shares\n"
    waited = alone(tmp_path, 0.2)
    gap, paused, held, _ = process.communicate()[0].split()
    assert waited < 0.3, "it did not wait for the end of the other's work"
    assert float(gap) > 0.19, "nothing ran beside it"
    assert abs(float(gap) - float(paused)) < 0.1
    assert held == "shared", "it goes on afterwards"


def test_one_that_captures_is_asked_again_and_not_interrupted(tmp_path):
    process = sharing(tmp_path, "captures")
    assert process.stdout is not None
    process.stdout.readline()
    alone(tmp_path, 0.1)
    gap, _, _, left = process.communicate()[0].split()
    assert int(left) < 0, "asked until it was idle"
    assert float(gap) > 0.09


def test_two_share_and_a_killed_one_leaves_no_lock(tmp_path):
    first, second = sharing(tmp_path), sharing(tmp_path)
    assert [each.stdout.readline() for each in (first, second)] == ["shares\n"] * 2  # type: ignore[union-attr]
    for each in (first, second):
        each.kill()
        each.wait()
    begin = time.monotonic()
    assert alone(tmp_path, 0.0) < 0.2, begin
