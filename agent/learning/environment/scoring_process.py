"""A worker of a score in a child process: one for each GPU of a machine, or several over the emulator.

Covered: a process that dies or is killed, which is started again at the next request; a parent that dies, after which the child
ends at once, in the middle of a candidate too.
Not covered: a process that hangs. Inside it every wait has an end, but the turn on a GPU that other processes use has none.
"""

from collections.abc import Callable, Generator, Sequence
from contextlib import AbstractContextManager
from typing import Any

from cudal2_agent.agent.learning.environment.scoring_sandbox import (
    END_PATIENCE_S,
    ScoringOrder,
    ScoringPlace,
    ScoringWorker,
    ScoringWorkerLost,
    WorkerOutcome,
    open_scoring_sandbox,
)
from cudal2_agent.contract.base import Record
from cudal2_agent.contract.errors import Cudal2Error, MachineError, UsageError, WorkerError
from cudal2_agent.contract.events import Emit, Event, Notice, WorkerRestarted, ignore
from cudal2_agent.contract.reward.score import TaskCandidates
from cudal2_agent.processes.child import Child, ChildLost, ChildPlan, ParentLine

# Opens the worker that a child process is the shell of. It must be importable by name.
OpenWorker = Callable[[ScoringOrder, Emit], AbstractContextManager[ScoringWorker]]


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


class ScoringProcess:
    """A `ScoringWorker` whose sandbox is open in a child process of its own."""

    def __init__(self, order: ScoringOrder, open_worker: OpenWorker = open_scoring_sandbox, emit: Emit = ignore) -> None:
        self._device, self._emit = order.settings.device, emit
        self._child = Child(ChildPlan(f"score {self._device}", _serve, (order, open_worker)))
        self._place: ScoringPlace | None = None
        self._busy = self._closed = False

    def place(self) -> ScoringPlace:
        """Raises: as the sandbox opens; WorkerError where the process ends before that."""
        if self._child.pid is None or self._place is None:
            if self._closed:
                raise WorkerError("the score was closed")
            self._child.start()
            try:
                self._place = self._received()
            except ChildLost as exc:
                raise WorkerError(f"the scoring process of {self._device} did not start: {exc}") from exc
            except BaseException:
                self._child.end()
                raise
        return self._place

    def evaluate(self, groups: Sequence[TaskCandidates]) -> Generator[WorkerOutcome]:
        self.place()
        self._busy = True
        try:
            self._child.send(tuple(groups))
            while (answer := self._received()) is not None:
                yield answer
        except Cudal2Error:  # the child has answered, and waits for the next request
            raise
        except ChildLost as exc:
            raise ScoringWorkerLost(str(exc)) from exc
        except BaseException:  # what is left of the answers must not meet the next request
            self._child.end()
            raise
        finally:
            self._busy = False

    def close(self) -> None:
        """A child that is at work is killed."""
        self._closed = True
        if self._busy:
            self._child.end()
        else:
            self._child.ask_to_end()
            self._child.end(END_PATIENCE_S)

    def _received(self) -> Any:
        """Raises: ChildLost, and the error that the child reports."""
        while isinstance(answer := self._child.receive(), Notice | WorkerRestarted):
            self._emit(answer)
        if isinstance(answer, ScoringFailure):
            raise answer.error()
        return answer


def _serve(parent: ParentLine, order: ScoringOrder, open_worker: OpenWorker) -> None:
    """Entry of the process."""

    def emit(event: Event) -> None:
        if isinstance(event, Notice | WorkerRestarted):  # stages are not told
            parent.send(event)

    try:
        with open_worker(order, emit) as worker:
            parent.send(worker.place())
            for groups in parent:
                _answer(worker, groups, parent)
    except Exception as exc:  # noqa: BLE001 (the parent raises it)
        parent.send(ScoringFailure.of(exc))


def _answer(worker: ScoringWorker, groups: Sequence[TaskCandidates], parent: ParentLine) -> None:
    try:
        for outcome in worker.evaluate(groups):
            parent.send(outcome)
    except Exception as exc:  # noqa: BLE001 (the parent raises it)
        parent.send(ScoringFailure.of(exc))
        return
    parent.send(None)
