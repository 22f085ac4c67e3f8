"""The slots of a campaign on one machine. A process that is lost is replaced in its slot, after a pause that grows."""

import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field

from cudal2_agent.agent.campaign.campaign_process import Doing, News, WorkerEnded, WorkerOrder, worker_name
from cudal2_agent.processes.child import INTERRUPTED, Child, ChildEnd, ChildLost, ChildPlan, ParentLine, wait_for

MAX_RESTARTS = 5  # in a row, without progress
BACK_OFF_S = 1.0
MAX_BACK_OFF_S = 30.0
END_PATIENCE_S = 15.0

# The entry of a process. It must be importable by name.
Entry = Callable[[ParentLine, WorkerOrder], None]
OnLost = Callable[[str, str], object]  # called with the name of a lost worker and the reason


@dataclass(eq=False)
class Slot:
    """A slot for processes: one GPU, or one prover. It outlives the processes in it.

    `ended`: no process will be started again; `reason`: why, where that is a failure.
    """

    label: str
    entry: Entry
    order: WorkerOrder
    stall_s: float
    doing: Doing = field(default_factory=Doing)
    since_s: float = field(default_factory=time.monotonic)
    earlier_candidates: int = 0
    restarts: int = 0
    start_s: float = 0.0
    ended: bool = False
    reason: str = ""

    def __post_init__(self) -> None:
        self.child = Child(ChildPlan(self.label, self.entry, (self.order,), hands_back=True))

    @property
    def candidates(self) -> int:
        return self.earlier_candidates + self.doing.candidates

    def start(self) -> None:
        self.child.start()
        self._note(Doing(stage="starting"))

    def read(self) -> ChildEnd | None:
        """Take the news of the process, and kill it where it has stalled. How it ended, if it did."""
        try:
            for news in self.child.received():
                self._take(news)
        except ChildLost as exc:
            return exc.end
        if not self.doing.task or self.child.silent_s <= self.stall_s:
            return None
        self.reason = f"it reported nothing for {self.stall_s:.0f} s"
        return self.child.end()

    def _take(self, news: News) -> None:
        if isinstance(news, WorkerEnded):
            self.reason = news.reason
            self.ended = news.hopeless or not news.reason
            return
        if self.doing.task and news.task != self.doing.task:
            self.restarts = 0
        self._note(news)

    def _note(self, doing: Doing) -> None:
        if doing.task != self.doing.task:
            self.since_s = time.monotonic()
        self.doing = doing


class Slots:
    """Several slots, and what happens in them."""

    def __init__(self, slots: Sequence[Slot], on_lost: OnLost, note: Callable[[str], None]) -> None:
        self.slots, self._on_lost, self._note = list(slots), on_lost, note

    def add(self, slots: Sequence[Slot]) -> None:
        self.slots.extend(slots)

    @property
    def running(self) -> bool:
        return any(not slot.ended for slot in self.slots)

    @property
    def busy(self) -> bool:
        return any(slot.doing.task for slot in self.slots)

    def tick(self, timeout_s: float) -> None:
        """Start what is due, wait for news at most so long, and deal with all of them."""
        for slot in self.slots:
            if slot.child.pid is None and not slot.ended and time.monotonic() >= slot.start_s:
                slot.start()
        wait_for([slot.child for slot in self.slots], timeout_s)
        for slot in self.slots:
            if (end := slot.read()) is not None:
                self._bury(slot, end)

    def stop(self) -> None:
        """End all processes: they hand back what they hold. One that does not end in END_PATIENCE_S is killed."""
        for slot in self.slots:
            slot.child.ask_to_end()
        deadline_s = time.monotonic() + END_PATIENCE_S
        for slot in self.slots:
            if (end := slot.child.end(max(deadline_s - time.monotonic(), 0.1))) is not None:
                self._on_lost(worker_name(end.pid), "its process was stopped")
            slot.ended = True

    def _bury(self, slot: Slot, end: ChildEnd) -> None:
        """The process is gone. Its task is free again, and after a pause the next process starts."""
        slot.earlier_candidates = slot.candidates
        shape, slot.doing = slot.doing.task, Doing()
        if slot.ended and not slot.reason:
            return
        reason = slot.reason or str(end)
        self._on_lost(worker_name(end.pid), f"its worker ended: {reason}")
        slot.ended = slot.ended or slot.restarts >= MAX_RESTARTS or end.code == INTERRUPTED
        again = "it is not started again" if slot.ended else "it is started again"
        slot.start_s = time.monotonic() + min(BACK_OFF_S * 2**slot.restarts, MAX_BACK_OFF_S)
        slot.restarts += 1
        self._note(f"{slot.label}{f' at {shape}' if shape else ''}: {reason}; {again}")
        slot.reason = reason if slot.ended else ""
