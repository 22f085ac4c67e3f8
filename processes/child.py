"""Child processes that run our own code: started, asked, lost, started again, and ended.

Covered: a child that dies, is killed or does not answer in time; a parent that dies, with which its children end; Ctrl-C in a
terminal, which reaches the children too; threads of libraries, which do not hold up a child's end.
Not covered: a child that never releases Python's lock, and outlives its parent; memory; secrets, since a child inherits its
parent's environment. Code of others runs in `sandbox/workers`, never here. Scripts need `if __name__ == "__main__"`.
"""

import os
import queue
import signal
import sys
import threading
import time
import traceback
from collections.abc import Callable, Iterator, Sequence
from contextlib import suppress
from dataclasses import dataclass
from multiprocessing import get_context, resource_tracker
from multiprocessing.connection import Connection, wait
from types import FrameType
from typing import Any, NamedTuple

INTERRUPTED = 130
_DYING_S = 0.2  # that a child which has closed its pipe has to end by itself, so that its own exit is reported
_INTERRUPT = frozenset({signal.SIGINT})


@dataclass(frozen=True)
class ChildPlan:
    """What a child runs: `entry`, importable by name, called with its `ParentLine` and the arguments.

    `hands_back`: its work is interrupted (`KeyboardInterrupt`, once) when it is asked to end, by Ctrl-C, and where its parent
    is gone. Any other child ends after the request in progress when it is asked to, ignores Ctrl-C, and ends with its parent.
    """

    name: str
    entry: Callable[..., object]
    arguments: tuple[Any, ...] = ()
    hands_back: bool = False


class ChildEnd(NamedTuple):
    """How a process ended. `code`: negative for a signal."""

    pid: int
    code: int

    def __str__(self) -> str:
        return f"signal {-self.code}" if self.code < 0 else f"exit code {self.code}"


class ChildLost(Exception):
    """The process is gone; another may be started. The message says why. `end`: how; None where there was none."""

    def __init__(self, reason: str, end: ChildEnd | None = None) -> None:
        super().__init__(reason)
        self.end = end


class Child:
    """One process at a time. One that is lost or was ended is started again by `start`."""

    def __init__(self, plan: ChildPlan) -> None:
        self._plan = plan
        self._process: Any = None
        self._pipe: Connection[Any, Any] | None = None
        self._spoke_s = 0.0

    @property
    def pid(self) -> int | None:
        """None where no process runs, or none that was not seen to end."""
        return None if self._process is None else int(self._process.pid)

    @property
    def silent_s(self) -> float:
        """Since the start or the last message, of either side."""
        return time.monotonic() - self._spoke_s

    def start(self) -> None:
        """Raises: OSError where the system refuses a process."""
        context = get_context("spawn")  # a forked one would inherit threads and locks
        ours, theirs = context.Pipe()
        arguments = (self._plan, theirs)
        process = context.Process(target=_run, args=arguments, name=f"cudal2 {self._plan.name}", daemon=True)
        resource_tracker.ensure_running()  # started later, it would lift the mask that follows
        mask = signal.pthread_sigmask(signal.SIG_BLOCK, _INTERRUPT)  # inherited: no traceback of a child's imports
        try:
            process.start()
        except BaseException:
            ours.close()
            raise
        finally:
            signal.pthread_sigmask(signal.SIG_SETMASK, mask)
            theirs.close()
        self._process, self._pipe, self._spoke_s = process, ours, time.monotonic()

    def send(self, message: object) -> None:
        """A child that is lost is noticed by the next `receive`. None is not a message."""
        if self._pipe is not None:
            with suppress(OSError):
                self._pipe.send(message)
            self._spoke_s = time.monotonic()

    def receive(self, within_s: float | None = None) -> Any:
        """The next message. Raises: ChildLost; a child that sends none in time is killed."""
        if (pipe := self._pipe) is None:
            raise ChildLost("it was closed")
        try:
            if pipe.poll(within_s):
                message = pipe.recv()
                self._spoke_s = time.monotonic()
                return message
        except (EOFError, OSError) as exc:
            end = self.end(_DYING_S)
            raise ChildLost(str(end or "it was closed"), end) from exc
        raise ChildLost(f"no answer within {within_s:g} s", self.end())

    def received(self) -> Iterator[Any]:
        """The messages that are there. Raises: ChildLost."""
        while self._pipe is not None and self._pipe.poll():
            yield self.receive()

    def ask_to_end(self) -> None:
        if self._pipe is not None and self._plan.hands_back:
            self._pipe.close()
            self._pipe = None
        self.send(None)

    def end(self, patience_s: float = 0.0) -> ChildEnd | None:
        """Kill the process if it still runs after so long. None where there was none."""
        process, pipe, self._process, self._pipe = self._process, self._pipe, None, None
        if process is None:
            return None
        process.join(patience_s)
        if process.is_alive():
            process.kill()
            process.join()
        if pipe is not None:
            pipe.close()
        return ChildEnd(process.pid, process.exitcode)


def wait_for(children: Sequence[Child], timeout_s: float) -> list[Child]:
    """Those with a message to receive, and those that are lost, once there are any or the time is up."""
    pipes = {child._pipe: child for child in children if child._pipe is not None}
    ready = wait(list(pipes), timeout_s)
    return [child for pipe, child in pipes.items() if pipe in ready]


class ParentLine:
    """The child's side: the parent's requests in order, and messages to it from any thread."""

    def __init__(self, pipe: "Connection[Any, Any]", *, hands_back: bool) -> None:
        self._pipe, self._hands_back, self._sending = pipe, hands_back, threading.Lock()
        self._requests: queue.SimpleQueue[Any] = queue.SimpleQueue()
        threading.Thread(target=self._listen, daemon=True).start()

    def send(self, message: object) -> None:
        """Nothing where the parent is gone: the thread that listens ends this process."""
        with self._sending, suppress(OSError):
            self._pipe.send(message)

    def __iter__(self) -> Iterator[Any]:
        """Until the parent asks this process to end."""
        return iter(self._requests.get, None)

    def _listen(self) -> None:
        try:
            with suppress(EOFError, OSError):
                while True:
                    self._requests.put(self._pipe.recv())
        finally:  # no message comes any more
            if self._hands_back:
                os.kill(os.getpid(), signal.SIGINT)
            else:
                os._exit(1)


def _run(plan: ChildPlan, pipe: "Connection[Any, Any]") -> None:
    """Main function of the process."""
    signal.signal(signal.SIGINT, _interrupt_once if plan.hands_back else signal.SIG_IGN)
    code = 0
    try:
        line = ParentLine(pipe, hands_back=plan.hands_back)  # its thread keeps the mask, so that this one is interrupted
        signal.pthread_sigmask(signal.SIG_UNBLOCK, _INTERRUPT)
        plan.entry(line, *plan.arguments)
    except KeyboardInterrupt:
        code = INTERRUPTED
    except BaseException:  # noqa: BLE001 (the process ends here)
        traceback.print_exc()
        code = 1
    finally:
        signal.signal(signal.SIGINT, signal.SIG_IGN)  # nothing is left to hand back
    with suppress(OSError, ValueError):
        sys.stdout.flush()
    os._exit(code)  # threads of libraries must not hold it up


def _interrupt_once(_: int, __: FrameType | None) -> None:
    """The first interrupt ends the work; later ones must not disturb what is handed back."""
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    raise KeyboardInterrupt
