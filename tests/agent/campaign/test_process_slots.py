"""Slots of a campaign: a process that stalls is replaced, one that cannot work is not, and the last news count."""

import time
from collections.abc import Callable
from pathlib import Path

import pytest

from cudal2_agent.agent.campaign import process_slots
from cudal2_agent.agent.campaign.campaign_process import Doing, Tell, WorkerOrder, report_job
from cudal2_agent.agent.campaign.process_slots import Slot, Slots
from cudal2_agent.contract.errors import UsageError
from cudal2_agent.contract.records.task import Arch
from cudal2_agent.contract.settings.settings import Settings
from cudal2_agent.processes.child import ParentLine


def stall(parent: ParentLine, _: WorkerOrder) -> None:
    """Entry: begins a task, evaluates three candidates, and reports nothing any more."""

    def job(tell: Tell) -> None:
        tell(Doing(task="16x16x16", stage="searching", candidates=3))
        time.sleep(600)

    report_job(parent, job)


def be_refused(parent: ParentLine, _: WorkerOrder) -> None:
    """Entry of a worker that no other could do better."""

    def job(_: Tell) -> None:
        raise UsageError("another campaign is using cuda-0-0")

    report_job(parent, job)


@pytest.fixture
def told(monkeypatch: pytest.MonkeyPatch) -> list[str]:
    monkeypatch.setattr(process_slots, "BACK_OFF_S", 0.01)
    return []


def slots(entry: Callable[[ParentLine, WorkerOrder], None], home: Path, told: list[str], stall_s: float = 600.0) -> Slots:
    order = WorkerOrder(campaign="c", settings=Settings(home=home), arch=Arch.SM_90A)
    return Slots([Slot("cuda:0", entry, order, stall_s)], lambda name, why: told.append(f"lost {name}: {why}"), told.append)


def tick_until(ticked: Slots, condition: Callable[[], bool]) -> None:
    deadline_s = time.monotonic() + 120
    while not condition():
        assert time.monotonic() < deadline_s
        ticked.tick(0.05)


def test_a_process_that_stalls_in_a_task_is_replaced_and_its_candidates_count(tmp_path: Path, told: list[str]) -> None:
    ticked = slots(stall, tmp_path, told, stall_s=0.3)
    [slot] = ticked.slots
    try:
        tick_until(ticked, lambda: bool(told))
        first = slot.candidates
        tick_until(ticked, lambda: slot.candidates > first)
    finally:
        ticked.stop()
    assert first == 3
    assert slot.candidates == 6
    assert told[0].startswith("lost ")
    assert told[0].endswith(": its worker ended: it reported nothing for 0 s")
    assert told[1] == "cuda:0 at 16x16x16: it reported nothing for 0 s; it is started again"
    assert told[-1].endswith("its process was stopped")
    assert not ticked.running


def test_what_every_process_would_fail_at_is_not_tried_again(tmp_path: Path, told: list[str]) -> None:
    ticked = slots(be_refused, tmp_path, told)
    [slot] = ticked.slots
    tick_until(ticked, lambda: not ticked.running and slot.child.pid is None)
    ticked.stop()
    assert slot.reason == "another campaign is using cuda-0-0"
    assert told[1:] == ["cuda:0: another campaign is using cuda-0-0; it is not started again"]
