"""From a reply to a candidate, by the readers of the chat policy, here or in processes.

In processes the spaces of a step's tasks are enumerated in parallel and before they are needed. A space takes about a second
of one processor. Each task belongs to one process, which keeps its space. A process reads what `read_schedule` reads here.

Covered: a process that dies, is killed or does not answer. It is started again; the second time this process reads instead.
A parent that dies, with which its readers end. Scripts need `if __name__ == "__main__"`, as for any spawn.
"""

from collections.abc import Callable, Iterable, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from functools import lru_cache
from typing import Any, NamedTuple

from cudal2_agent.contract.events import Emit, Notice, ignore
from cudal2_agent.contract.host_limits import usable_processors
from cudal2_agent.contract.plan.chip import Chip
from cudal2_agent.contract.records.candidate import Candidate
from cudal2_agent.contract.records.task import GemmTask
from cudal2_agent.policies.chat.replies.fenced_blocks import Malformed
from cudal2_agent.policies.chat.replies.forms import read_reply
from cudal2_agent.policies.chat.replies.schedule_json import NamedSchedules
from cudal2_agent.policies.schedule.named_schedules import TaskSchedules, Unwritable
from cudal2_agent.processes.child import Child, ChildLost, ChildPlan, ParentLine

# Shares of validity: an object that could be read, a family of the task, its axes. Only a schedule that can be written has 1.
READABLE, FAMILY, AXES = 0.2, 0.2, 0.4
KEPT_TASKS = 64  # whose schedules stay in the memory of a process, about 16 MB each
MAX_READERS = 4  # a step asks for a few tasks
PROCESSORS_PER_READER = 4  # most are left to builds and to the trainer
READ_LIMIT_S = 120.0  # for the replies to one task, its space included


@dataclass(frozen=True)
class ScheduleReply:
    """A reply that was read. `validity`: from 0 to 1, and 1 only with a candidate. `problem`: why there is none."""

    candidate: Candidate | None
    validity: float
    problem: str = ""


def read_schedule(text: str, schedules: TaskSchedules, *, cut: bool = False) -> ScheduleReply:
    """The candidate of a reply that names exactly one schedule."""
    read = read_reply(text, cut=cut)
    if isinstance(read, Malformed):
        return ScheduleReply(None, 0.0, read.problem)
    if not isinstance(read, NamedSchedules) or len(read.values) != 1:
        return ScheduleReply(None, 0.0, "the reply is not one schedule")
    [values] = read.values
    written = schedules.expand(values)
    if isinstance(written, Unwritable):
        return ScheduleReply(None, _validity(values, schedules), "; ".join(written.reasons))
    return ScheduleReply(written, 1.0)


def _validity(values: object, schedules: TaskSchedules) -> float:
    """The share of a schedule that cannot be written which is right by itself."""
    if not isinstance(values, Mapping):
        return 0.0
    family = schedules.families.get(str(values.get("family")))
    given = {str(axis): value for axis, value in values.items() if axis != "family"}
    if family is None:
        return READABLE
    right = sum(not any(family.wrong_axes({axis: value})) for axis, value in given.items())
    return READABLE + FAMILY + AXES * (right / len(given) if given else 1.0)


schedules_of = lru_cache(maxsize=KEPT_TASKS)(TaskSchedules)


class TaskPlace(NamedTuple):
    """A task on a chip, each as JSON."""

    task: str
    chip: str

    def schedules(self) -> TaskSchedules:
        """Enumerated where they are not in memory."""
        return schedules_of(GemmTask.model_validate_json(self.task), Chip.model_validate_json(self.chip))


class TaskReplies(NamedTuple):
    """Replies to the prompt of one task."""

    place: TaskPlace
    texts: tuple[str, ...]

    def read(self) -> list[ScheduleReply]:
        schedules = self.place.schedules()
        return [read_schedule(text, schedules) for text in self.texts]


def reader_count(processes: int = 1) -> int:
    """How many readers each of `processes` trainers has on this machine; 0 where it has few processors."""
    return min(MAX_READERS, usable_processors() // PROCESSORS_PER_READER // processes)


class ReplyReaders:
    """Reads replies in `count` processes; with none, in this one."""

    def __init__(self, count: int, emit: Emit = ignore, limit_s: float = READ_LIMIT_S) -> None:
        self._readers = [ReadingProcess(emit, limit_s) for _ in range(count)]
        self._owners: dict[TaskPlace, ReadingProcess] = {}

    def expect(self, places: Iterable[TaskPlace]) -> None:
        """Enumerate the spaces of tasks in the background."""
        for place in dict.fromkeys(places):
            if self._readers:
                self._owner(place).expect(place)

    def read(self, asked: Sequence[TaskReplies]) -> list[list[ScheduleReply]]:
        """What each task's replies name, in order."""
        if not self._readers:
            return [one.read() for one in asked]
        shares: dict[ReadingProcess, list[int]] = {}
        for number, one in enumerate(asked):
            shares.setdefault(self._owner(one.place), []).append(number)
        found: dict[int, list[ScheduleReply]] = {}
        with ThreadPoolExecutor(max(len(shares), 1), thread_name_prefix="read") as pool:
            calls = [pool.submit(_read_share, reader, asked, numbers) for reader, numbers in shares.items()]
            for call in calls:
                found |= call.result()
        return [found[number] for number in range(len(asked))]

    def close(self) -> None:
        for reader in self._readers:
            reader.close()

    def _owner(self, place: TaskPlace) -> "ReadingProcess":
        """The process that has the space of a task; new tasks go round."""
        if place not in self._owners:
            self._owners[place] = self._readers[len(self._owners) % len(self._readers)]
        return self._owners[place]


def _read_share(
    reader: "ReadingProcess", asked: Sequence[TaskReplies], numbers: Sequence[int]
) -> dict[int, list[ScheduleReply]]:
    return {number: reader.read(asked[number]) for number in numbers}


class ReadingProcess:
    """One reader. `pid`: None where no process runs."""

    def __init__(self, emit: Emit, limit_s: float) -> None:
        self._emit, self._limit_s = emit, limit_s
        self._child = Child(ChildPlan("reply reader", _serve))
        self._given_up = False
        self._child.start()

    @property
    def pid(self) -> int | None:
        return self._child.pid

    def expect(self, place: TaskPlace) -> None:
        """A process that is lost is noticed by the next `read`."""
        if not self._given_up:
            self._child.send(place)

    def read(self, replies: TaskReplies) -> list[ScheduleReply]:
        """Raises: what reading raises."""
        for again in (False, True):
            if self._given_up:
                break
            try:
                return self._read(replies)
            except ChildLost as exc:
                self._given_up = again
                remedy = "the training process reads its replies" if again else "it is started again"
                self._emit(Notice(message=f"a process that reads replies was lost ({exc}); {remedy}"))
        return replies.read()

    def close(self) -> None:
        """Ends the process, whatever it does."""
        self._child.end()

    def _read(self, replies: TaskReplies) -> list[ScheduleReply]:
        """Raises: ChildLost, and what reading raises."""
        if self._child.pid is None:
            self._child.start()
        self._child.send(replies)
        answer = self._child.receive(self._limit_s)
        if isinstance(answer, Exception):
            raise answer
        found: list[ScheduleReply] = answer
        return found


def _serve(parent: ParentLine) -> None:
    """Entry of the process."""
    for message in parent:
        if isinstance(message, TaskReplies):
            parent.send(_tried(message.read))
        else:
            _tried(message.schedules)


def _tried(call: Callable[[], Any]) -> Any:
    """What a call returns, or the error that it raised."""
    try:
        return call()
    except Exception as exc:  # noqa: BLE001 (the parent raises it)
        return exc
