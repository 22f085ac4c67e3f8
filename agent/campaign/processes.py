"""The processes of a campaign on one machine: started, watched, replaced when they are lost, and ended."""

import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from multiprocessing import get_context
from multiprocessing.connection import Connection, wait
from typing import Any

from cudal2_agent.agent.campaign.campaign_process import INTERRUPTED, Doing, News, WorkerEnded, WorkerOrder, worker_name

MAX_RESTARTS = 5  # in a row, without progress
BACK_OFF_S = 1.0
MAX_BACK_OFF_S = 30.0
END_PATIENCE_S = 15.0

# The entry of a process. It must be importable by name.
Entry = Callable[[WorkerOrder, Any], None]
OnLost = Callable[[str, str], object]  # called with the name of a lost worker and the reason


@dataclass
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
    heard_s: float = field(default_factory=time.monotonic)
    earlier_candidates: int = 0
    restarts: int = 0
    start_s: float = 0.0
    ended: bool = False
    reason: str = ""
    process: Any = None
    pipe: "Connection[str, News] | None" = None

    @property
    def candidates(self) -> int:
        return self.earlier_candidates + self.doing.candidates

    def start(self) -> None:
        context = get_context("spawn")
        self.pipe, theirs = context.Pipe()
        self.process = context.Process(target=self.entry, args=(self.order, theirs), name=f"cudal2 {self.label}", daemon=True)
        self.process.start()
        theirs.close()
        self.note(Doing(stage="starting"))

    def note(self, doing: Doing) -> None:
        self.heard_s = time.monotonic()
        if doing.task != self.doing.task:
            self.since_s = self.heard_s
        self.doing = doing

    def stop(self) -> None:
        """Tell the process to hand back its task and to end."""
        if self.pipe is not None:
            self.pipe.close()

    def kill(self) -> None:
        if self.process is not None and self.process.is_alive():
            self.process.kill()


class Processes:
    """The slots of a campaign."""

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
            if slot.process is None and not slot.ended and time.monotonic() >= slot.start_s:
                slot.start()
        open_pipes = [slot.pipe for slot in self.slots if slot.pipe is not None]
        if not open_pipes:
            time.sleep(timeout_s)
        wait(open_pipes, timeout_s)
        for slot in self.slots:
            if slot.pipe is not None:
                self._read(slot, slot.pipe)

    def stop(self) -> None:
        """End all processes: they hand back what they hold. One that does not end in END_PATIENCE_S is killed."""
        for slot in self.slots:
            slot.stop()
        deadline_s = time.monotonic() + END_PATIENCE_S
        for slot in self.slots:
            if slot.process is not None:
                slot.process.join(max(deadline_s - time.monotonic(), 0.1))
                if slot.process.is_alive():
                    slot.kill()
                    slot.process.join()
                self._on_lost(worker_name(slot.process.pid), "its process was stopped")
            slot.process, slot.pipe, slot.ended = None, None, True

    def _read(self, slot: Slot, pipe: "Connection[str, News]") -> None:
        try:
            while pipe.poll():
                news = pipe.recv()
                if isinstance(news, WorkerEnded):
                    slot.reason = news.reason
                    slot.ended = news.hopeless or not news.reason
                else:
                    if slot.doing.task and news.task != slot.doing.task:
                        slot.restarts = 0
                    slot.note(news)
        except (EOFError, OSError):
            self._bury(slot)
            return
        if slot.doing.task and time.monotonic() - slot.heard_s > slot.stall_s:
            slot.reason = f"it reported nothing for {slot.stall_s:.0f} s"
            slot.kill()

    def _bury(self, slot: Slot) -> None:
        """The process is gone. Its task is free again, and after a pause the next process starts."""
        slot.process.join()
        code, name = slot.process.exitcode, worker_name(slot.process.pid)
        if slot.pipe is not None:
            slot.pipe.close()
        slot.earlier_candidates, slot.process, slot.pipe = slot.candidates, None, None
        shape, slot.doing = slot.doing.task, Doing()
        if slot.ended and not slot.reason:
            return
        reason = slot.reason or (f"signal {-code}" if code and code < 0 else f"exit code {code}")
        self._on_lost(name, f"its worker ended: {reason}")
        slot.ended = slot.ended or slot.restarts >= MAX_RESTARTS or code == INTERRUPTED
        again = "it is not started again" if slot.ended else "it is started again"
        slot.start_s = time.monotonic() + min(BACK_OFF_S * 2**slot.restarts, MAX_BACK_OFF_S)
        slot.restarts += 1
        self._note(f"{slot.label}{f' at {shape}' if shape else ''}: {reason}; {again}")
        slot.reason = reason if slot.ended else ""
