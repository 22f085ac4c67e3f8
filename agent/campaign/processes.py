"""The processes of a campaign on one machine: started, watched, replaced when they are lost, and ended."""

import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from multiprocessing import get_context
from multiprocessing.connection import Connection, wait
from typing import Any

from agent.campaign.child import INTERRUPTED, worker_name
from agent.campaign.messages import Doing, Ended, News, WorkerOrder

MAX_RESTARTS = 5  # in a row, without progress
BACK_OFF_S = 1.0
MAX_BACK_OFF_S = 30.0
END_PATIENCE_S = 15.0

# The entry of a process. It must be importable by name.
Entry = Callable[[WorkerOrder, Any], None]
OnLost = Callable[[str, str], object]  # called with the name of a lost worker and the reason


@dataclass
class Place:
    """A process's place: one GPU, or one prover. It outlives the processes in it.

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
    """The places of a campaign."""

    def __init__(self, places: Sequence[Place], on_lost: OnLost, note: Callable[[str], None]) -> None:
        self.places, self._on_lost, self._note = places, on_lost, note

    @property
    def running(self) -> bool:
        return any(not place.ended for place in self.places)

    @property
    def busy(self) -> bool:
        return any(place.doing.task for place in self.places)

    def tick(self, timeout_s: float) -> None:
        """Start what is due, wait for news at most so long, and deal with all of them."""
        for place in self.places:
            if place.process is None and not place.ended and time.monotonic() >= place.start_s:
                place.start()
        open_pipes = [place.pipe for place in self.places if place.pipe is not None]
        if not open_pipes:
            time.sleep(timeout_s)
        wait(open_pipes, timeout_s)
        for place in self.places:
            if place.pipe is not None:
                self._read(place, place.pipe)

    def stop(self) -> None:
        """End all processes: they hand back what they hold. One that does not end in END_PATIENCE_S is killed."""
        for place in self.places:
            place.stop()
        deadline_s = time.monotonic() + END_PATIENCE_S
        for place in self.places:
            if place.process is not None:
                place.process.join(max(deadline_s - time.monotonic(), 0.1))
                if place.process.is_alive():
                    place.kill()
                    place.process.join()
                self._on_lost(worker_name(place.process.pid), "its process was stopped")
            place.process, place.pipe, place.ended = None, None, True

    def _read(self, place: Place, pipe: "Connection[str, News]") -> None:
        try:
            while pipe.poll():
                news = pipe.recv()
                if isinstance(news, Ended):
                    place.reason = news.reason
                    place.ended = news.hopeless or not news.reason
                else:
                    if place.doing.task and news.task != place.doing.task:
                        place.restarts = 0
                    place.note(news)
        except (EOFError, OSError):
            self._bury(place)
            return
        if place.doing.task and time.monotonic() - place.heard_s > place.stall_s:
            place.reason = f"it reported nothing for {place.stall_s:.0f} s"
            place.kill()

    def _bury(self, place: Place) -> None:
        """The process is gone. Its task is free again, and after a pause the next process starts."""
        place.process.join()
        code, name = place.process.exitcode, worker_name(place.process.pid)
        if place.pipe is not None:
            place.pipe.close()
        place.earlier_candidates, place.process, place.pipe = place.candidates, None, None
        shape, place.doing = place.doing.task, Doing()
        if place.ended and not place.reason:
            return
        reason = place.reason or (f"signal {-code}" if code and code < 0 else f"exit code {code}")
        self._on_lost(name, f"its worker ended: {reason}")
        place.ended = place.ended or place.restarts >= MAX_RESTARTS or code == INTERRUPTED
        again = "it is not started again" if place.ended else "it is started again"
        place.start_s = time.monotonic() + min(BACK_OFF_S * 2**place.restarts, MAX_BACK_OFF_S)
        place.restarts += 1
        self._note(f"{place.label}{f' at {shape}' if shape else ''}: {reason}; {again}")
        place.reason = reason if place.ended else ""
