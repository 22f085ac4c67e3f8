"""Turns on a GPU between processes: what is timed runs while nothing else does, and who shares gives way in mid-work."""

import subprocess
import sys
from pathlib import Path

SHARES = """
import sys
from contextlib import contextmanager
from pathlib import Path
from benchmarks.modules.turns import GpuTurn
folder = Path(sys.argv[1])
class Told(GpuTurn):
    @contextmanager
    def _waiting(self):
        with super()._waiting():
            (folder / "waits").touch()  # its clock runs
            yield
capturing = [2 if sys.argv[2] == "captures" else 0]
def idle():
    capturing[0] -= 1
    return capturing[0] < 0
pauses = []
turn = Told(folder, idle, pauses.append)
turn.share()
(folder / "waits").unlink(missing_ok=True)  # another one may have
print("shares", flush=True)
beside = 0
while not (folder / "stop").exists():
    begun = (folder / "alone").exists()
    sum(range(2000))
    beside += begun and (folder / "alone").exists()  # worked while the other one had the GPU
assert pauses == [True, False] * (len(pauses) // 2)
print(beside, turn.paused_s, turn.held, capturing[0], len(pauses), flush=True)
"""


def sharing(folder: Path, what: str = "computes") -> "subprocess.Popen[str]":
    return subprocess.Popen([sys.executable, "-c", SHARES, str(folder), what], stdout=subprocess.PIPE, text=True)


def alone(folder: Path, seconds: float) -> None:
    """Have the GPU alone in a process of its own for `seconds` of another one's waiting, then let those that share end."""
    code = """
import sys, time
from pathlib import Path
from benchmarks.modules.turns import GpuTurn
folder = Path(sys.argv[1])
turn = GpuTurn(folder, lambda: True, lambda paused: None)
turn.alone()
(folder / "alone").touch()
while float(sys.argv[2]) and not (folder / "waits").exists():
    time.sleep(0.001)
time.sleep(float(sys.argv[2]))
(folder / "alone").unlink()
turn.leave()
(folder / "stop").touch()
"""
    subprocess.run([sys.executable, "-c", code, str(folder), str(seconds)], check=True, timeout=30)


def test_one_that_shares_pauses_in_mid_work_for_one_that_times(tmp_path):
    process = sharing(tmp_path)
    assert process.stdout is not None
    assert process.stdout.readline() == "shares\n"
    alone(tmp_path, 0.2)  # it does not wait for the end of the other's work, which only ends afterwards
    beside, paused, held, _, told = process.communicate(timeout=30)[0].split()
    assert int(beside) == 0, "nothing ran beside it"
    assert int(told) >= 2, "it told when it paused, and when it went on"
    assert float(paused) >= 0.2
    assert held == "shared", "it goes on afterwards"


def test_one_that_captures_is_asked_again_and_not_interrupted(tmp_path):
    process = sharing(tmp_path, "captures")
    assert process.stdout is not None
    process.stdout.readline()
    alone(tmp_path, 0.1)
    beside, paused, _, left, _ = process.communicate(timeout=30)[0].split()
    assert int(left) < 0, "asked until it was idle"
    assert int(beside) == 0
    assert float(paused) >= 0.1


def test_two_share_and_a_killed_one_leaves_no_lock(tmp_path):
    first, second = sharing(tmp_path), sharing(tmp_path)
    assert [each.stdout.readline() for each in (first, second)] == ["shares\n"] * 2  # type: ignore[union-attr]
    for each in (first, second):
        each.kill()
        each.wait()
    alone(tmp_path, 0.0)
