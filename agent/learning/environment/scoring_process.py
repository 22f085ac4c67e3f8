"""A worker of a score in a child process: one for each GPU of a machine, or several over the emulator.

Covered: a process that dies or is killed, which is started again at the next request; a parent that dies, after which the child
ends at once, in the middle of a candidate too.
Not covered: a process that hangs. Inside it every wait has an end, but the turn on a GPU that other processes use has none.
"""

import contextlib
import os
import queue
import signal
import threading
from collections.abc import Callable, Generator, Sequence
from contextlib import AbstractContextManager
from multiprocessing import get_context
from multiprocessing.connection import Connection
from typing import Any

from cudal2_agent.agent.learning.environment.scoring_sandbox import END_PATIENCE_S, open_scoring_sandbox
from cudal2_agent.agent.learning.environment.scoring_worker import (
    ScoringOrder,
    ScoringPlace,
    ScoringWorker,
    ScoringWorkerLost,
    WorkerOutcome,
)
from cudal2_agent.contract.base import Record
from cudal2_agent.contract.errors import Cudal2Error, MachineError, UsageError, WorkerError
from cudal2_agent.contract.events import Emit, Event, Notice, WorkerRestarted, ignore
from cudal2_agent.contract.reward.score import TaskCandidates

# Opens the worker that a child process is the shell of. It must be importable by name.
OpenWorker = Callable[[ScoringOrder, Emit], AbstractContextManager[ScoringWorker]]


class ScoringRequest(Record):
    groups: tuple[TaskCandidates, ...]


class ScoringFailure(Record):
    """Why a child process cannot answer. `kind`: whose fault it is."""

    kind: str
    message: str

    @classmethod
    def of(cls, error: Exception) -> "ScoringFailure":
        kind = next((name for name, one in _KINDS.items() if isinstance(error, one)), "")
        return cls(kind=kind, message=str(error) if kind else f"internal error: {type(error).__name__}: {error}")

    def error(self) -> Cudal2Error:
        return _KINDS.get(self.kind, WorkerError)(self.message)


_KINDS: dict[str, type[Cudal2Error]] = {"machine": MachineError, "usage": UsageError, "worker": WorkerError}
# None ends the answers to a request; events may come at any time.
_Answer = ScoringPlace | WorkerOutcome | ScoringFailure | Notice | WorkerRestarted | None


class ScoringProcess:
    """A `ScoringWorker` whose sandbox is open in a child process of its own."""

    def __init__(self, order: ScoringOrder, open_worker: OpenWorker = open_scoring_sandbox, emit: Emit = ignore) -> None:
        self._order, self._open_worker, self._emit = order, open_worker, emit
        self._process: Any = None
        self._pipe: Connection[Any, Any] | None = None
        self._place: ScoringPlace | None = None
        self._busy = self._closed = False

    def place(self) -> ScoringPlace:
        """Raises: as the sandbox opens; WorkerError where the process ends before that."""
        if self._place is None:
            self._start()
            try:
                self._place = self._received()
            except ScoringWorkerLost as exc:
                raise WorkerError(f"the scoring process of {self._order.settings.device} did not start: {exc}") from exc
        return self._place

    def evaluate(self, groups: Sequence[TaskCandidates]) -> Generator[WorkerOutcome]:
        self.place()
        self._busy = True
        try:
            self._send(ScoringRequest(groups=tuple(groups)))
            while (answer := self._received()) is not None:
                yield answer
        except Cudal2Error:  # the child has answered, and waits for the next request
            raise
        except BaseException:  # what is left of the answers must not meet the next request
            self._end()
            raise
        finally:
            self._busy = False

    def close(self) -> None:
        """A child that is at work is killed."""
        self._closed = True
        if self._pipe is not None and not self._busy:
            with contextlib.suppress(ScoringWorkerLost):
                self._send(None)
                self._process.join(END_PATIENCE_S)
        self._end()

    def _start(self) -> None:
        if self._closed:
            raise WorkerError("the score was closed")
        context = get_context("spawn")
        self._pipe, theirs = context.Pipe()
        arguments = (self._order, self._open_worker, theirs)
        self._process = context.Process(target=_serve, args=arguments, name=f"cudal2 score {self._order.settings.device}")
        self._process.start()
        theirs.close()

    def _send(self, request: ScoringRequest | None) -> None:
        """Raises: ScoringWorkerLost."""
        try:
            assert self._pipe is not None
            self._pipe.send(request)
        except OSError as exc:
            raise ScoringWorkerLost(self._end()) from exc

    def _received(self) -> Any:
        """Raises: ScoringWorkerLost, and the error that the child reports."""
        assert self._pipe is not None
        try:
            answer: _Answer = self._pipe.recv()
            while isinstance(answer, Notice | WorkerRestarted):
                self._emit(answer)
                answer = self._pipe.recv()
        except (EOFError, OSError) as exc:
            raise ScoringWorkerLost(self._end()) from exc
        if isinstance(answer, ScoringFailure):
            if self._place is None:
                self._end()
            raise answer.error()
        return answer

    def _end(self) -> str:
        """Kill the process if it still runs; how it ended."""
        process, pipe, self._process, self._pipe, self._place = self._process, self._pipe, None, None, None
        if pipe is not None:
            pipe.close()
        if process is None:
            return "it was closed"
        process.join(0.2)
        if process.is_alive():
            process.kill()
            process.join()
        return f"signal {-process.exitcode}" if process.exitcode < 0 else f"exit code {process.exitcode}"


def _serve(order: ScoringOrder, open_worker: OpenWorker, pipe: "Connection[Any, Any]") -> None:
    """Entry of the process. An interrupt from the terminal is the parent's to handle."""
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    say = _Said(pipe)
    requests: queue.SimpleQueue[ScoringRequest | None] = queue.SimpleQueue()
    threading.Thread(target=_listen, args=(pipe, requests), daemon=True).start()
    code = 0
    try:
        with open_worker(order, say.event) as worker:
            say.answer(worker.place())
            while (request := requests.get()) is not None:
                _answer(worker, request, say)
    except Exception as exc:  # noqa: BLE001 (the parent raises it)
        with contextlib.suppress(OSError):
            say.answer(ScoringFailure.of(exc))
        code = 1
    os._exit(code)  # threads of libraries must not hold it up


class _Said:
    """What goes through the pipe to the parent, from several threads."""

    def __init__(self, pipe: "Connection[Any, Any]") -> None:
        self._pipe, self._lock = pipe, threading.Lock()

    def answer(self, answer: _Answer) -> None:
        """Raises: OSError where the parent is gone."""
        with self._lock:
            self._pipe.send(answer)

    def event(self, event: Event) -> None:
        """An `Emit`. Stages are not told."""
        if isinstance(event, Notice | WorkerRestarted):
            self.answer(event)


def _answer(worker: ScoringWorker, request: ScoringRequest, say: _Said) -> None:
    """Raises: OSError where the parent is gone."""
    try:
        for outcome in worker.evaluate(request.groups):
            say.answer(outcome)
    except OSError:
        raise
    except Exception as exc:  # noqa: BLE001 (the parent raises it)
        say.answer(ScoringFailure.of(exc))
        return
    say.answer(None)


def _listen(pipe: "Connection[Any, Any]", requests: "queue.SimpleQueue[ScoringRequest | None]") -> None:
    """Requests as they come. The parent's end ends this process, whatever it does."""
    try:
        while True:
            request = pipe.recv()
            requests.put(request)
            if request is None:
                return
    except (EOFError, OSError):
        os._exit(1)
