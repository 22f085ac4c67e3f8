"""Sandboxes through a folder: workers and agents beside each other, those that die, and files of strangers."""

import json
import os
import shutil
import stat
import subprocess
import sys
import threading
import time
from pathlib import Path
from typing import Any

import pytest

from cudal2_agent.contract.errors import DeviceUnavailable, MachineError, UsageError
from cudal2_agent.contract.events import WorkerRestarted
from cudal2_agent.contract.records.evaluation import Evaluation
from cudal2_agent.contract.records.task import Arch
from cudal2_agent.sandbox.remote import link as link_module
from cudal2_agent.sandbox.remote import spool_link, spool_worker
from cudal2_agent.sandbox.remote.far_answers import EndAnswer, OpenedAnswer
from cudal2_agent.sandbox.remote.remote_sandbox import RemoteSandbox
from cudal2_agent.sandbox.remote.spool_folder import PARTS, SpooledAgent, SpooledAnswers, SpooledWorker, SpoolFolder
from cudal2_agent.sandbox.remote.spool_link import SpoolLink
from cudal2_agent.sandbox.remote.spool_worker import Served, SpoolWorker
from tests.doubles import CHIP, TASK, ScriptedSandbox, measured, unmeasured
from tests.doubles.scripted import ENVIRONMENT
from tests.sandbox.remote.test_command_link import HELLO, OPENING, built_of
from tests.sandbox.remote.through_json import raising, service_over

OPENED = OpenedAnswer(host="gpu1", chip=CHIP, environment=ENVIRONMENT, can_execute=True, can_measure=True)
WORKER = SpooledWorker(hello=HELLO, opened=OPENED)
NUMBERED = built_of("// candidate 1")


@pytest.fixture(autouse=True)
def _quickly(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(spool_worker, "POLL_S", 0.01)
    monkeypatch.setattr(spool_worker, "BEAT_S", 0.05)
    monkeypatch.setattr(spool_link, "LAST_POLL_S", 0.02)
    monkeypatch.setattr(spool_link, "LEASE_S", 0.4)
    monkeypatch.setattr(spool_link, "SETTLE_S", 0.2)


class Far:
    """A folder, its workers and its agents."""

    def __init__(self, path: Path) -> None:
        self.path, self.folder, self.events = path, SpoolFolder(path), list[Any]()
        self.links: list[SpoolLink] = []
        self._threads: list[threading.Thread] = []

    def work(self, scripted: Any = None, *, idle_s: float = 0.0, on_open: Any = lambda *_: None) -> "list[Served | Exception]":
        """A worker in a thread that serves what is there. What it returned or raised is in the list at its end."""
        ended: list[Served | Exception] = []
        service = service_over(scripted or ScriptedSandbox({1: 5.0}), on_open)
        worker = SpoolWorker(self.folder, HELLO, service, once=True, idle_s=idle_s, tell=lambda _: None)

        def serve() -> None:
            try:
                ended.append(worker.serve(OPENING))
            except Exception as exc:  # noqa: BLE001 (the test looks at it)
                ended.append(exc)

        self._threads.append(threading.Thread(target=serve, daemon=True))
        self._threads[-1].start()
        return ended

    def agent(self, wait_s: float = 10.0) -> RemoteSandbox:
        self.links.append(SpoolLink(self.path, wait_s))
        return RemoteSandbox(self.links[-1], OPENING, lambda *_: unmeasured(9.0).prediction, self.events.append)

    def settle(self) -> None:
        for thread in self._threads:
            thread.join(10)
            assert not thread.is_alive()


@pytest.fixture
def far(tmp_path: Path) -> Any:
    found = Far(tmp_path / "spool")
    yield found
    for link in found.links:
        link.close()


def announced(far: Far, **changes: Any) -> None:
    """A worker that was here."""
    far.folder.put_worker("earlier", WORKER.model_copy(update={"ended": True, **changes}))


def test_a_worker_serves_what_is_there_and_ends(far: Far) -> None:
    announced(far)
    sandbox, found = far.agent(), list[Evaluation]()
    asking = threading.Thread(target=lambda: found.append(sandbox.evaluate(NUMBERED, TASK, "quick")))
    asking.start()
    while not far.folder.waiting():
        time.sleep(0.01)
    ended = far.work(idle_s=0.2)
    asking.join(10)
    far.settle()
    assert found == [measured(5.0, effort="quick")]
    assert [one.calls for one in ended if isinstance(one, Served)] == [1]
    far.links[0].close()
    assert [path.parent.name for path in far.path.rglob("*.json")] == ["workers"], "nothing but the worker's own file is left"


def test_many_calls_wait_at_once_and_two_workers_share_them(far: Far) -> None:
    announced(far)
    sandboxes, found = [far.agent() for _ in range(4)], list[Evaluation]()
    asking = [threading.Thread(target=lambda one=one: found.append(one.evaluate(NUMBERED, TASK, "quick"))) for one in sandboxes]
    for thread in asking:
        thread.start()
    while len(far.folder.waiting()) < 4:
        time.sleep(0.01)
    slow = [ScriptedSandbox({1: 5.0}, evaluate_s=0.1) for _ in range(2)]
    ended = [far.work(one, idle_s=0.1) for one in slow]
    for thread in asking:
        thread.join(10)
    far.settle()
    assert found == [measured(5.0, effort="quick")] * 4
    assert sorted(len(one.evaluated) for one in slow) == [2, 2]
    assert sum(one.calls for each in ended for one in each if isinstance(one, Served)) == 4


def test_one_call_has_the_gpu_at_a_time(far: Far) -> None:
    """Nothing is timed beside a proof, which takes processors."""
    announced(far)
    sandboxes = [far.agent() for _ in range(3)]
    now, most = [0], [0]

    class Counting(ScriptedSandbox):
        def evaluate(self, *given: Any) -> Evaluation:
            now[0] += 1
            most[0] = max(most[0], now[0])
            time.sleep(0.05)
            now[0] -= 1
            return super().evaluate(*given)

        def witness(self, built: Any, task: Any, seconds: float | None = None) -> Evaluation:
            self.evaluate(built, task, "quick")
            return super().witness(built, task, seconds)

    calls = [sandboxes[0].evaluate, lambda built, task, _: sandboxes[1].witness(built, task), sandboxes[2].evaluate]
    asking = [threading.Thread(target=call, args=(NUMBERED, TASK, "quick")) for call in calls]
    for thread in asking:
        thread.start()
    far.work(Counting({1: 5.0}), idle_s=0.3)
    for thread in asking:
        thread.join(10)
    far.settle()
    assert most == [1]


def test_a_worker_that_died_with_a_call_costs_no_candidate_at_first(far: Far) -> None:
    announced(far)
    sandbox = far.agent()
    found: list[Evaluation] = []
    asking = threading.Thread(target=lambda: found.append(sandbox.evaluate(NUMBERED, TASK, "quick")))
    asking.start()
    while not (waiting := far.folder.waiting()):
        time.sleep(0.01)
    taken = far.folder.take(waiting[0].name)
    assert taken is not None
    while not far.events:
        time.sleep(0.01)
    far.work(idle_s=0.3)
    asking.join(10)
    assert found == [measured(5.0, effort="quick")]
    assert ["gave no sign of life" in event.reason for event in far.events if isinstance(event, WorkerRestarted)] == [True]
    far.folder.answer(SpooledAnswers(id=taken.id, answers=(EndAnswer(),)), waiting[0].name)  # it was not dead after all
    far.settle()
    far.links[0].close()
    assert not list((far.path / "answers").iterdir())


def test_a_worker_that_lives_may_take_its_time(far: Far) -> None:
    announced(far)
    sandbox = far.agent()
    far.work(ScriptedSandbox({1: 5.0}, evaluate_s=1.0), idle_s=0.3)
    assert sandbox.evaluate(NUMBERED, TASK, "quick") == measured(5.0, effort="quick")
    assert far.events == []


def test_a_call_that_nobody_waits_for_any_more_ends_in_its_worker(far: Far) -> None:
    announced(far)
    name = far.folder.put_call(_call(far), WORKER.need)
    scripted = ScriptedSandbox({1: 5.0}, evaluate_s=0.3)
    ended = far.work(scripted, idle_s=0.1)
    while not far.folder.is_taken(name):
        time.sleep(0.01)
    far.folder.drop(name)
    far.settle()
    assert [one.calls for one in ended if isinstance(one, Served)] == [0]
    assert not list((far.path / "answers").iterdir())


def test_a_folder_may_be_carried_by_hand(far: Far, tmp_path: Path) -> None:
    """The machine with the GPU gets a copy; its answers are copied back, a part of a file at a time."""
    announced(far)
    sandbox, found = far.agent(), list[Evaluation]()
    asking = threading.Thread(target=lambda: found.append(sandbox.evaluate(NUMBERED, TASK, "quick")))
    asking.start()
    while not (waiting := far.folder.waiting()):
        time.sleep(0.01)
    shutil.copytree(far.path, tmp_path / "copy")
    there = Far(tmp_path / "copy")
    ended = there.work()
    there.settle()
    assert [one.calls for one in ended if isinstance(one, Served)] == [1]
    answers = (tmp_path / "copy" / "answers" / f"{waiting[0].id}.json").read_bytes()
    for part in (answers[:99], answers):
        (far.path / "answers" / f"{waiting[0].id}.json").write_bytes(part)
        time.sleep(0.05)
    asking.join(10)
    assert found == [measured(5.0, effort="quick")]
    assert far.events == []
    assert not far.folder.waiting()
    assert sandbox.queued_s > 0


def test_answers_that_are_none_count_as_a_lost_worker(far: Far) -> None:
    announced(far)
    sandbox = far.agent()
    found: list[Evaluation] = []
    asking = threading.Thread(target=lambda: found.append(sandbox.evaluate(NUMBERED, TASK, "quick")))
    asking.start()
    for content in (b'{"id": 5}', b"\x00" * 100):
        while not (waiting := far.folder.waiting()):
            time.sleep(0.01)
        (far.path / "answers" / f"{waiting[0].id}.json").write_bytes(content)
        while any(one.id == waiting[0].id for one in far.folder.waiting()):
            time.sleep(0.01)
    asking.join(10)
    assert found[0].fault.endswith("what it answered is no record of this protocol")


def test_a_worker_of_another_gpu_leaves_the_calls_alone(far: Far) -> None:
    announced(far)
    sandbox = far.agent(wait_s=0.5)

    class Other(ScriptedSandbox):
        environment = ENVIRONMENT.model_copy(update={"gpu": "another"})

    ended = far.work(Other(), idle_s=0.6)
    with pytest.raises(DeviceUnavailable, match=r"no worker took a call within 0 s .* workers so far: H200 at gpu1"):
        sandbox.evaluate(NUMBERED, TASK, "quick")
    far.settle()
    assert [one.calls for one in ended if isinstance(one, Served)] == [0]


def test_a_worker_that_is_interrupted_hands_its_calls_back(far: Far, monkeypatch: pytest.MonkeyPatch) -> None:
    announced(far)
    call_name = far.folder.put_call(_call(far), WORKER.need)
    service = service_over(ScriptedSandbox({1: 5.0}, evaluate_s=30))
    worker = SpoolWorker(far.folder, HELLO, service, once=False, idle_s=0.0, tell=lambda _: None)

    def interrupt(*_: object) -> None:
        if far.folder.is_taken(call_name):
            raise KeyboardInterrupt

    monkeypatch.setattr(worker._wake, "wait", interrupt)
    with pytest.raises(KeyboardInterrupt):
        worker.serve(OPENING)
    assert [one.name for one in far.folder.waiting()] == [call_name]
    assert [one.ended for one in far.folder.workers().values() if isinstance(one, SpooledWorker)] == [True]


def _call(far: Far) -> Any:
    """What an agent asks."""
    sandbox = far.agent()
    asked: list[Any] = []
    far.links[-1]._folder.put_call = lambda call, _need: asked.append(call) or "none"  # type: ignore[method-assign]
    far.links[-1]._wait_s = 0.01
    with pytest.raises(DeviceUnavailable):
        sandbox.evaluate(NUMBERED, TASK, "quick")
    return asked[0]


def test_an_agent_that_was_killed_leaves_nothing_behind(far: Far) -> None:
    announced(far)
    call = _call(far)
    gone = subprocess.Popen([sys.executable, "-I", "-S", "-c", ""])
    gone.wait()
    name = far.folder.put_call(call, WORKER.need)
    far.folder._write("agents", f"{call.id[:16]}.json", SpooledAgent(host=os.uname().nodename, pid=gone.pid))
    far.agent()
    assert not (far.path / "calls" / name).exists()
    assert {path.stem for path in (far.path / "agents").iterdir()} == {link.name for link in far.links} - {call.id[:16]}


def test_files_of_strangers_are_skipped(far: Far) -> None:
    """A pipe would block its reader, a link leads elsewhere, a folder and a long file are no calls."""
    announced(far)
    id_ = "ab" * 16
    names = [f"work.{WORKER.need}.{number:020d}.{id_}.json" for number in range(4)]
    os.mkfifo(far.path / "calls" / names[0])
    (far.path / "calls" / names[1]).symlink_to("/etc/passwd")
    (far.path / "calls" / names[2]).mkdir()
    (far.path / "calls" / names[3]).write_text(json.dumps({"id": id_, "message": "call"}))
    (far.path / "calls" / "notes.txt").write_text("mine")
    (far.path / "workers" / "x.json").write_text("[" * 100_000)
    ended = far.work()
    far.settle()
    assert [one.calls for one in ended if isinstance(one, Served)] == [0]
    assert (far.path / "calls" / "notes.txt").exists()


@pytest.mark.skipif(os.geteuid() == 0, reason="root may write everywhere")
def test_a_folder_that_is_read_only_is_one_line(far: Far) -> None:
    announced(far)
    sandbox = far.agent()
    (far.path / "calls").chmod(0o500)
    with pytest.raises(MachineError, match="cannot be used: Permission denied; make it writable or free some space"):
        sandbox.evaluate(NUMBERED, TASK, "quick")
    (far.path / "calls").chmod(0o700)


def test_a_folder_that_fills_is_one_line_on_both_sides(far: Far, monkeypatch: pytest.MonkeyPatch) -> None:
    announced(far)
    sandbox = far.agent()
    full = OSError(28, "No space left on device")
    monkeypatch.setattr("cudal2_agent.sandbox.remote.spool_folder.whole_file", raising(full))  # type: ignore[arg-type]
    with pytest.raises(MachineError, match=r"spool folder .* cannot be used: No space left on device; .* runs resume"):
        sandbox.evaluate(NUMBERED, TASK, "quick")
    ended = far.work(idle_s=5)
    far.settle()
    assert isinstance(ended[0], MachineError)


def test_a_folder_that_everybody_may_write_to_is_refused(tmp_path: Path) -> None:
    SpoolFolder(tmp_path / "mine")
    assert stat.S_IMODE((tmp_path / "mine" / PARTS[0]).stat().st_mode) == 0o700
    (tmp_path / "mine").chmod(0o777)
    with pytest.raises(UsageError, match="everybody may write to spool folder"):
        SpoolFolder(tmp_path / "mine")


def test_no_worker_is_waited_for_and_told(far: Far, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture) -> None:
    monkeypatch.setattr(link_module, "FIRST_TOLD_S", 0.05)
    with pytest.raises(DeviceUnavailable, match=r"no worker came within 0 s .*; start one with: cudal2-agent worker --spool"):
        far.agent(wait_s=0.3)
    assert "still waiting for a worker of spool:" in caplog.messages[0]


@pytest.mark.parametrize("readable", [True, False])
def test_a_worker_of_another_version_is_refused_and_one_that_ended_is_waited_past(
    readable: bool, far: Far, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setattr(link_module, "FIRST_TOLD_S", 0.0)
    old = WORKER.model_copy(update={"hello": HELLO.model_copy(update={"version": "9.9.9"})}).model_dump(mode="json")
    old |= {} if readable else {"field": "of another version"}
    (far.path / "workers" / "old.json").write_text(json.dumps(old | {"ended": True}))
    with pytest.raises(DeviceUnavailable, match="no worker came"):
        far.agent(wait_s=0.3)
    assert "9.9.9" in caplog.messages[0], "a user sees why a worker that was there is not enough"
    (far.path / "workers" / "old.json").write_text(json.dumps(old))
    with pytest.raises(DeviceUnavailable, match=r"9\.9\.9.* install the same wheel or commit on both"):
        far.agent(wait_s=0.1)


def test_the_target_and_the_chip_are_those_of_the_worker(far: Far) -> None:
    announced(far)
    assert far.agent().chip == CHIP
    assert far.links[0].arch is Arch.SM_90A
    sm_80 = OPENING.model_copy(update={"arch": Arch.SM_80})
    link = SpoolLink(far.path, 0.1)
    with pytest.raises(DeviceUnavailable, match="workers so far: H200 at gpu1"):
        RemoteSandbox(link, sm_80, lambda *_: unmeasured(9.0).prediction, far.events.append)
    link.close()


def test_an_emulator_serves_every_target(far: Far) -> None:
    announced(far, opened=OPENED.model_copy(update={"environment": None, "can_measure": False}))
    link = SpoolLink(far.path, 0.1)
    sandbox = RemoteSandbox(
        link, OPENING.model_copy(update={"arch": Arch.SM_80}), lambda *_: unmeasured(9.0).prediction, far.events.append
    )
    assert (sandbox.chip.arch, sandbox.can_measure) == (Arch.SM_80, False)
    link.close()


def test_a_machine_that_cannot_open_its_sandbox_ends_with_its_reason(far: Far) -> None:
    ended = far.work(on_open=raising(MachineError("no driver")))
    far.settle()
    assert "no driver" in str(ended[0])
    assert far.folder.workers() == {}
