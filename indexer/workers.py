"""Splits files in worker processes, one file per worker at a time, so that a file that kills or hangs a worker is known.

Covered: a worker that dies or exceeds the time limit loses its file and is replaced; Ctrl-C and a killed parent end all
workers. A worker has a limit of memory, beyond which its file is left out.
"""

import logging
import queue
import resource
import threading
from collections import deque
from collections.abc import Callable, Generator, Sequence
from dataclasses import dataclass
from pathlib import Path

from cudal2_agent.contract.errors import KnowledgeError, SourceError
from cudal2_agent.contract.records.knowledge import SplitFile
from cudal2_agent.indexer.walk import load
from cudal2_agent.processes.child import Child, ChildLost, ChildPlan, ParentLine, wait_for

Split = Callable[[str, bytes], SplitFile]
_READY = "ready"
_START_TIMEOUT_S = 120.0
_POLL_S = 0.2
MAX_WORKER_BYTES = 1 << 30  # the largest file of CUTLASS takes a tenth of it
_AHEAD = 32  # results that are queued while the store embeds


@dataclass(frozen=True)
class SplitResult:
    """The split file, or the reason why there is none. `unreadable`: the file, not the splitter, is at fault."""

    path: str
    split: SplitFile | None = None
    reason: str = ""
    unreadable: bool = False


def split_files(
    paths: Sequence[str], root: Path, split: Split, jobs: int, timeout_s: float
) -> Generator[SplitResult, None, None]:
    """The result for every path, in order of completion. Splitting goes on while the caller handles a result.

    Raises: KnowledgeError if the workers cannot be started.
    """
    done: queue.Queue[SplitResult | BaseException | None] = queue.Queue(_AHEAD)
    stop = threading.Event()
    pump = threading.Thread(
        target=_pump, args=(_SplitPool(root, split, timeout_s), deque(paths), jobs, done, stop), daemon=True
    )
    pump.start()
    try:
        while (item := done.get()) is not None:
            if isinstance(item, BaseException):
                raise item
            yield item
    finally:
        stop.set()
        pump.join()


def _pump(
    pool: "_SplitPool",
    waiting: deque[str],
    jobs: int,
    done: "queue.Queue[SplitResult | BaseException | None]",
    stop: threading.Event,
) -> None:
    def put(item: SplitResult | BaseException | None) -> None:
        while not stop.is_set():
            try:
                done.put(item, timeout=_POLL_S)
            except queue.Full:
                continue
            return

    try:
        pool.start(min(jobs, len(waiting)))
        while not stop.is_set() and (waiting or pool.busy):
            pool.feed(waiting)
            for result in pool.finished():
                put(result)
        put(None)
    except BaseException as exc:  # noqa: BLE001 (handed over to the thread that waits for it)
        put(exc)
    finally:
        pool.stop()


class _SplitPool:
    """The workers and their current files."""

    def __init__(self, root: Path, split: Split, timeout_s: float) -> None:
        self._root = root
        self._split = split
        self._timeout_s = timeout_s
        self._workers: list[_SplitWorker] = []

    @property
    def busy(self) -> bool:
        return any(worker.path for worker in self._workers)

    def start(self, count: int) -> None:
        for _ in range(count):
            self._workers.append(self._worker())

    def feed(self, waiting: deque[str]) -> None:
        for worker in self._workers:
            if waiting and not worker.path:
                worker.give(waiting.popleft())

    def finished(self) -> list[SplitResult]:
        """The results since the last call, after a short wait. Dead and late workers are replaced."""
        ready = wait_for([worker.child for worker in self._workers], _POLL_S)
        results = []
        for index, worker in enumerate(self._workers):
            reason = ""
            if worker.child in ready:
                try:
                    results += worker.take()
                except ChildLost as exc:
                    reason = f"it ended the process ({exc})"
            elif worker.late(self._timeout_s):
                reason = f"it took more than {self._timeout_s:g} s"
            if reason:
                results += [SplitResult(worker.path, reason=reason)] if worker.path else []
                worker.child.end()
                self._workers[index] = self._worker()
        return results

    def stop(self) -> None:
        for worker in self._workers:
            worker.child.end()

    def _worker(self) -> "_SplitWorker":
        try:
            return _SplitWorker(self._root, self._split)
        except OSError as exc:
            raise KnowledgeError(f"a process that splits files cannot be started: {exc.strerror or exc}") from exc


class _SplitWorker:
    """One process and its current file. Its time limit starts when it is ready."""

    def __init__(self, root: Path, split: Split) -> None:
        self.path = ""
        self._ready = False
        self.child = Child(ChildPlan("splitter", _serve, (root, split)))
        self.child.start()

    def give(self, path: str) -> None:
        """A worker that died while it was idle is noticed by `take`."""
        self.path = path
        self.child.send(path)

    def take(self) -> list[SplitResult]:
        """The worker's message. Raises: ChildLost; KnowledgeError if it was never ready, since the next would fail as well."""
        try:
            message = self.child.receive()
        except ChildLost as exc:
            if not self._ready:
                problem = f"the processes that split files cannot be started ({exc}); see their output above"
                raise KnowledgeError(problem) from exc
            raise
        if message == _READY:
            self._ready = True
            return []
        self.path = ""
        return [message]

    def late(self, timeout_s: float) -> bool:
        """Whether the file takes too long. Raises: KnowledgeError if the worker never became ready."""
        taken_s = self.child.silent_s
        if not self._ready and taken_s > _START_TIMEOUT_S:
            raise KnowledgeError(f"a process that splits files was not ready after {taken_s:.0f} s; is the machine overloaded?")
        return self._ready and bool(self.path) and taken_s > timeout_s


def _serve(parent: ParentLine, root: Path, split: Split) -> None:
    """Entry of a worker: paths to results."""
    resource.setrlimit(resource.RLIMIT_DATA, (MAX_WORKER_BYTES, MAX_WORKER_BYTES))
    logging.disable(logging.WARNING)  # libraries log remarks on a file; the result contains what matters
    parent.send(_READY)
    for path in parent:
        parent.send(_result(root, path, split))


def _result(root: Path, path: str, split: Split) -> SplitResult:
    try:
        return SplitResult(path, split(path, load(root, path)))
    except SourceError as exc:
        return SplitResult(path, reason=str(exc).removeprefix(f"{path}: "), unreadable=True)
    except OSError as exc:
        return SplitResult(path, reason=f"cannot be read: {exc.strerror or exc}", unreadable=True)
    except Exception as exc:  # noqa: BLE001 (one bad file must not end the run; a notice names the file)
        return SplitResult(path, reason=f"the splitter failed with {type(exc).__name__}")
