"""Processes that read replies: the same answers as here, each space enumerated once, and processes that are killed or hang."""

import json
import os
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from cudal2_agent.contract.events import Event, Notice
from cudal2_agent.policies.lm.compact_prompt import reply_of
from cudal2_agent.policies.lm.replies import reply_readers
from cudal2_agent.policies.lm.replies.reply_readers import (
    MAX_READERS,
    ReplyReaders,
    TaskPlace,
    TaskReplies,
    read_schedule,
    reader_count,
)
from cudal2_agent.policies.schedule.named_schedules import schedules_for
from cudal2_agent.processes.child import ChildPlan, ParentLine
from tests.doubles import CHIP
from tests.policies.lm.tiny import TASKS

ROOT = Path(__file__).parents[3]
PLACES = [TaskPlace(task.model_dump_json(), CHIP.model_dump_json()) for task in TASKS]
BEST = [[reply_of(schedules_for(task, CHIP), one.values) or "" for one in schedules_for(task, CHIP).best(3)] for task in TASKS]
WRONG = ('{"family": "latency", "colour": 1}', "Hello.")
ASKED = [TaskReplies(place, (*best, *WRONG)) for place, best in zip(PLACES, BEST, strict=True)]
HERE = [one.read() for one in ASKED]


def ends_at_once(_: ParentLine) -> None:
    """Entry of a reader that reads nothing."""


@pytest.fixture
def events() -> list[Event]:
    return []


@pytest.fixture
def readers(events: list[Event]) -> Iterator[ReplyReaders]:
    opened = ReplyReaders(2, events.append)
    yield opened
    opened.close()


def pids(readers: ReplyReaders) -> list[int | None]:
    return [one.pid for one in readers._readers]


def told(events: list[Event]) -> list[str]:
    return [event.message for event in events if isinstance(event, Notice)]


def test_processes_read_what_this_process_reads_in_order(readers: ReplyReaders, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(reply_readers, "schedules_of", None)  # nothing is enumerated here
    readers.expect(PLACES)
    assert readers.read(ASKED) == HERE
    assert readers.read(ASKED[::-1]) == HERE[::-1]
    assert [reply.candidate is not None for reply in HERE[0]] == [True, True, True, False, False]


def test_tasks_go_to_all_processes_and_stay_there(readers: ReplyReaders) -> None:
    owners = [readers._owner(place) for place in PLACES]
    assert len({owner.pid for owner in owners}) == 2
    readers.read(ASKED)
    assert [readers._owner(place) for place in PLACES] == owners


def test_a_killed_process_is_started_again_with_one_line(readers: ReplyReaders, events: list[Event]) -> None:
    readers.expect(PLACES)
    [first, second] = pids(readers)
    assert first is not None
    os.kill(first, signal.SIGKILL)
    assert readers.read(ASKED) == HERE
    assert told(events) == ["a process that reads replies was lost (signal 9); it is started again"]
    assert pids(readers)[0] not in (None, first)
    assert pids(readers)[1] == second
    assert readers.read(ASKED) == HERE
    assert len(events) == 1


def test_a_process_that_dies_again_is_given_up_and_reading_goes_on(
    readers: ReplyReaders, events: list[Event], monkeypatch: pytest.MonkeyPatch
) -> None:
    readers.read(ASKED)
    os.kill(pids(readers)[0] or 0, signal.SIGKILL)
    # A process that is started from now on ends at once.
    monkeypatch.setattr(readers._readers[0]._child, "_plan", ChildPlan("reply reader", ends_at_once))
    assert readers.read(ASKED) == HERE
    assert told(events)[1] == "a process that reads replies was lost (exit code 0); the training process reads its replies"
    readers.expect(PLACES)
    assert readers.read(ASKED) == HERE
    assert len(events) == 2


def test_a_process_that_does_not_answer_is_replaced(events: list[Event]) -> None:
    readers = ReplyReaders(1, events.append, limit_s=5.0)
    try:
        assert readers.read(ASKED) == HERE
        stopped = pids(readers)[0] or 0
        os.kill(stopped, signal.SIGSTOP)
        begin_s = time.monotonic()
        assert readers.read(ASKED[:1]) == HERE[:1]
        assert time.monotonic() - begin_s < 60
        assert told(events)[0] == "a process that reads replies was lost (no answer within 5 s); it is started again"
        with pytest.raises(ProcessLookupError):
            os.kill(stopped, 0)
    finally:
        readers.close()


def test_an_error_of_reading_is_raised_here(readers: ReplyReaders) -> None:
    broken = TaskReplies(TaskPlace("{}", "{}"), ("Hello.",))
    with pytest.raises(ValueError, match="validation error"):
        readers.read([broken])
    assert readers.read(ASKED) == HERE


def test_nothing_is_left_after_the_end(readers: ReplyReaders) -> None:
    readers.expect(PLACES)
    left = pids(readers)
    readers.close()
    for pid in left:
        with pytest.raises(ProcessLookupError):
            os.kill(pid or 0, 0)
    assert pids(readers) == [None, None]


def test_readers_end_with_a_parent_that_is_killed() -> None:
    code = "import time\nfrom cudal2_agent.policies.lm.replies.reply_readers import ReplyReaders\nopened = ReplyReaders(2)\n"
    code += "print(*[one.pid for one in opened._readers], flush=True)\ntime.sleep(60)"
    with subprocess.Popen([sys.executable, "-c", code], cwd=ROOT, stdout=subprocess.PIPE, text=True) as parent:
        assert parent.stdout is not None
        left = [int(pid) for pid in parent.stdout.readline().split()]
        parent.kill()
    deadline_s = time.monotonic() + 30
    while any(Path(f"/proc/{pid}").exists() for pid in left):
        assert time.monotonic() < deadline_s
        time.sleep(0.1)
    assert len(left) == 2


@pytest.mark.parametrize(("processors", "trainers", "count"), [(2, 1, 0), (16, 1, 4), (16, 4, 1), (128, 1, MAX_READERS)])
def test_readers_suit_the_machine(processors: int, trainers: int, count: int, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(os, "sched_getaffinity", lambda _: set(range(processors)))
    assert reader_count(trainers) == count


# Replies as candidates, and how much of a failed one is right.
SCHEDULES = schedules_for(TASKS[0], CHIP)
# From nothing to a schedule, each better than the one before.
LADDER = [
    "I would use large tiles.",
    '{"family": "none_of_these", "block_m": 64}',
    '{"family": "latency", "block_m": 77, "colour": "red"}',
    '{"family": "latency", "block_m": 64, "colour": "red"}',
    '{"family": "latency", "block_m": 64, "block_n": 64, "block_k": 64, "groups": 9}',
    '{"family": "latency", "block_m": 64}',
]


def test_validity_rises_with_what_is_right_and_is_1_for_a_schedule_alone() -> None:
    replies = [read_schedule(text, SCHEDULES) for text in LADDER]
    validities = [reply.validity for reply in replies]
    assert validities == sorted(set(validities))
    assert validities[0] == 0.0
    assert validities[-1] == 1.0
    assert [reply.candidate is not None for reply in replies] == [False] * 5 + [True]
    assert all(bool(reply.problem) == (reply.candidate is None) for reply in replies)


@pytest.mark.parametrize(
    "text",
    [
        '{"family": "latency", "block_m": 6',
        '{"family": "latency", "family": "mma_sync"}',
        '[{"family": "latency"}, {"family": "mma_sync"}]',
        '{"family": "latency", "block_m": NaN}',
        '["family"]',
        "",
    ],
)
def test_what_is_not_one_schedule_has_no_validity(text: str) -> None:
    reply = read_schedule(text, SCHEDULES)
    assert (reply.candidate, reply.validity) == (None, 0.0)
    assert reply.problem


def test_axes_that_cannot_be_together_are_less_than_a_schedule() -> None:
    axes = {"block_m": 16, "warps_m": 4}
    assert not any(SCHEDULES.families["latency"].wrong_axes(axes))
    reply = read_schedule(json.dumps({"family": "latency", **axes}), SCHEDULES)
    assert reply.candidate is None
    assert reply.validity == pytest.approx(0.8)
