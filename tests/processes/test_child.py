"""Supervised child processes: messages, losses, limits, and every way to end."""

import os
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import suppress
from pathlib import Path

import pytest

from cudal2_agent.processes.child import INTERRUPTED, Child, ChildLost, ChildPlan, ParentLine, wait_for

ROOT = Path(__file__).resolve().parents[2]
PARENT = """
import sys, time
from cudal2_agent.processes.child import Child, ChildPlan
from tests.processes import test_child
if __name__ == "__main__":
    child = Child(ChildPlan("test", getattr(test_child, sys.argv[1]), (sys.argv[2],), hands_back=sys.argv[1] == "hand_back"))
    child.start()
    print(child.receive(), flush=True)
    time.sleep(float(sys.argv[3]))
"""


def echo(parent: ParentLine, word: str) -> None:
    """Entry: answers each request, and says what it saw when it was asked to end."""
    for request in parent:
        parent.send((word, request))
    parent.send("ended")


def be_stuck(parent: ParentLine, _: str = "") -> None:
    """Entry: reads no request any more."""
    parent.send(os.getpid())
    while True:
        time.sleep(60)


def hand_back(parent: ParentLine, mark: str) -> None:
    """Entry: is interrupted, once, and then hands back in peace."""
    try:
        parent.send(os.getpid())
        time.sleep(60)
    except KeyboardInterrupt:
        with suppress(OSError):
            os.kill(os.getpid(), signal.SIGINT)  # a second one does not disturb it
        time.sleep(0.1)
        Path(mark).write_text("handed back")
        raise


def fail(_: ParentLine) -> None:
    raise ValueError("a bug")


def keep_a_thread(parent: ParentLine) -> None:
    threading.Thread(target=time.sleep, args=(600,)).start()
    parent.send("done")


@pytest.fixture
def started() -> Iterator[Callable[..., Child]]:
    made: list[Child] = []

    def start(entry: Callable[..., object], *arguments: object, hands_back: bool = False) -> Child:
        made.append(Child(ChildPlan("test", entry, arguments, hands_back=hands_back)))
        made[-1].start()
        return made[-1]

    yield start
    for child in made:
        child.end()


def runs(pid: int) -> bool:
    """Whether a process lives; one that only waits to be reaped does not."""
    try:
        return (Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0]) != "Z"
    except OSError:
        return False


def wait_until(condition: Callable[[], bool]) -> None:
    deadline_s = time.monotonic() + 60
    while not condition():
        assert time.monotonic() < deadline_s
        time.sleep(0.02)


def test_requests_are_answered_in_order_and_the_last_one_before_the_end(started: Callable[..., Child]) -> None:
    child = started(echo, "a")
    child.send(1)
    child.send(2)
    child.ask_to_end()
    assert [child.receive(60), child.receive(60), child.receive(60)] == [("a", 1), ("a", 2), "ended"]
    with pytest.raises(ChildLost, match="exit code 0") as lost:
        child.receive(60)
    assert lost.value.end is not None
    assert lost.value.end.code == 0
    assert child.pid is None


def test_a_killed_child_is_lost_at_the_next_receive_and_can_be_started_again(started: Callable[..., Child]) -> None:
    child = started(echo, "a")
    first = child.pid or 0
    os.kill(first, signal.SIGKILL)
    wait_until(lambda: not runs(first))
    child.send("unread")
    with pytest.raises(ChildLost, match="signal 9") as lost:
        child.receive()
    assert lost.value.end == (first, -9)
    with pytest.raises(ChildLost, match="closed"):
        child.receive()
    child.start()
    child.send("x")
    assert child.receive(60) == ("a", "x")


def test_a_child_that_does_not_answer_in_time_is_killed(started: Callable[..., Child]) -> None:
    child = started(be_stuck)
    pid = child.receive(60)
    assert pid == child.pid
    os.kill(pid, signal.SIGSTOP)
    with pytest.raises(ChildLost, match=r"no answer within 0\.1 s"):
        child.receive(0.1)
    assert not runs(pid)


def test_a_bug_in_a_child_is_an_exit_code_and_a_traceback(
    started: Callable[..., Child], capfd: pytest.CaptureFixture[str]
) -> None:
    with pytest.raises(ChildLost, match="exit code 1"):
        started(fail).receive(60)
    assert capfd.readouterr().err.rstrip().endswith("ValueError: a bug")


def test_a_thread_of_a_library_does_not_hold_up_the_end(started: Callable[..., Child]) -> None:
    child = started(keep_a_thread)
    assert child.receive(60) == "done"
    end = child.end(60)
    assert end is not None
    assert end.code == 0


def test_a_child_that_hands_back_is_interrupted_once(started: Callable[..., Child], tmp_path: Path) -> None:
    child = started(hand_back, str(tmp_path / "mark"), hands_back=True)
    child.receive(60)
    child.ask_to_end()
    end = child.end(60)
    assert end is not None
    assert end.code == INTERRUPTED
    assert (tmp_path / "mark").read_text() == "handed back"


def test_any_other_child_ignores_ctrl_c(started: Callable[..., Child]) -> None:
    child = started(echo, "a")
    os.kill(child.pid or 0, signal.SIGINT)  # while it starts: the signal waits for the handler
    child.send(1)
    assert child.receive(60) == ("a", 1)
    os.kill(child.pid or 0, signal.SIGINT)
    child.send(2)
    assert child.receive(60) == ("a", 2)


def test_the_end_kills_what_is_stuck_after_its_patience(started: Callable[..., Child]) -> None:
    child = started(be_stuck)
    pid = child.receive(60)
    child.ask_to_end()
    assert child.end(0.1) == (pid, -9)
    assert child.end() is None


def test_those_with_news_and_those_that_are_lost_are_awaited(started: Callable[..., Child]) -> None:
    silent, talks, dead = started(be_stuck), started(echo, "a"), started(be_stuck)
    for one in (silent, dead):
        one.receive(60)
    assert silent.silent_s < 60
    assert wait_for([silent, talks, dead], 0.1) == []
    talks.send(1)
    assert wait_for([silent, talks, dead], 60) == [talks]
    assert list(talks.received()) == [("a", 1)]
    dead.end()
    assert wait_for([silent, talks, dead], 0.1) == []
    begin_s = time.monotonic()
    assert wait_for([], 0.1) == []
    assert time.monotonic() - begin_s > 0.09, "without children the time passes, too"


@pytest.mark.parametrize("entry", ["be_stuck", "hand_back"])
def test_a_child_ends_with_a_parent_that_is_killed(entry: str, tmp_path: Path) -> None:
    script, mark = tmp_path / "parent.py", tmp_path / "mark"
    script.write_text(PARENT)
    command = [sys.executable, str(script), entry, str(mark), "600"]
    environment = {**os.environ, "PYTHONPATH": str(ROOT)}
    with subprocess.Popen(command, env=environment, stdout=subprocess.PIPE, text=True) as parent:
        assert parent.stdout is not None
        pid = int(parent.stdout.readline())
        assert runs(pid)
        parent.kill()
    wait_until(lambda: not runs(pid))
    assert mark.exists() == (entry == "hand_back"), "work is handed back without a parent, too"


def test_a_child_does_not_hold_up_a_parent_that_leaves_it(tmp_path: Path) -> None:
    script = tmp_path / "parent.py"
    script.write_text(PARENT)
    command = [sys.executable, str(script), "be_stuck", "", "0"]
    done = subprocess.run(
        command, env={**os.environ, "PYTHONPATH": str(ROOT)}, capture_output=True, text=True, timeout=60, check=True
    )
    assert not runs(int(done.stdout))
