"""The tools of a chat policy over the parts of its run: its sandbox and its knowledge base."""

import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager

from cudal2_agent.agent.observe.retrieval import look_up
from cudal2_agent.contract.protocols import Sandbox
from cudal2_agent.contract.records.build import Built
from cudal2_agent.contract.records.candidate import Candidate
from cudal2_agent.contract.records.evaluation import Evaluation, Prediction, Unmeasured
from cudal2_agent.contract.records.knowledge import Hit, Retriever
from cudal2_agent.contract.records.module_task import Task


class RunWorkbench:
    """`contract.protocols.Workbench` of one run. It proves kernels on the emulator, also beside a GPU.

    While a model is asked, its run times nothing on a GPU: rounds are begun ahead only for policies without a model.
    The parts are given later (`connect`), since a policy opens before them: its errors are the cheapest to find.
    """

    def __init__(self, task: Task) -> None:
        self._task = task
        self._parts: tuple[Sandbox, Retriever] | None = None
        self._proved: dict[str, Evaluation] = {}
        self._emulating, self._searching = threading.Lock(), threading.Lock()

    def connect(self, sandbox: Sandbox, retriever: Retriever) -> None:
        self._parts = sandbox, retriever

    def compile(self, candidate: Candidate, seconds: float) -> Built | Evaluation:
        """See `Workbench.compile`. A build that takes too long is ended."""
        ended = threading.Event()
        timer = threading.Timer(seconds, ended.set)
        timer.daemon = True
        timer.start()
        try:
            for _, outcome in self._connected[0].build([candidate], self._task, ended):
                return outcome
        finally:
            timer.cancel()
        raise TimeoutError

    def verify(self, candidate: Candidate, seconds: float) -> Evaluation:
        """See `Workbench.verify`. One proof at a time: it may use all processors."""
        until = time.monotonic() + seconds
        built = self.compile(candidate, seconds)
        return self._proof(built, until) if isinstance(built, Built) else built

    def predict(self, candidate: Candidate, seconds: float) -> Prediction | Evaluation:
        """See `Workbench.predict`. Where only a model of the run knows the kernel, the emulator runs it."""
        until = time.monotonic() + seconds
        built = self.compile(candidate, seconds)
        if not isinstance(built, Built):
            return built
        prediction = self._connected[0].predict(built, self._task)
        if not prediction.is_floor:
            return prediction
        evaluation = self._proof(built, until)
        return evaluation.prediction if isinstance(evaluation, Unmeasured) else evaluation

    def search(self, words: str, seconds: float) -> list[Hit]:
        """See `Workbench.search`. Notes come first, then code: here somebody asks for it."""
        with _turn(self._searching, time.monotonic() + seconds):
            return look_up(self._connected[1], [words], self._task, [words], sure=False)

    def _proof(self, built: Built, until: float) -> Evaluation:
        """The emulator's verdict, which is kept for the same kernel."""
        with _turn(self._emulating, until):
            known = self._proved.get(built.candidate.id)
            if known is None:
                known = self._connected[0].witness(built, self._task, seconds=max(until - time.monotonic(), 1.0))
                if known.executed:
                    self._proved[built.candidate.id] = known
        return known

    @property
    def _connected(self) -> tuple[Sandbox, Retriever]:
        assert self._parts is not None, "the workbench is used before its parts are open"
        return self._parts


@contextmanager
def _turn(lock: threading.Lock, until: float) -> Iterator[None]:
    """Raises: TimeoutError where the lock is not free in time."""
    if not lock.acquire(timeout=max(until - time.monotonic(), 0.0)):
        raise TimeoutError
    try:
        yield
    finally:
        lock.release()
