"""Splits files in worker processes, one file per worker at a time, so that a file that kills or hangs a worker is known.

Covered: a worker that dies or exceeds the time limit loses its file and is replaced; Ctrl-C and a killed parent end all
workers. Not covered: the memory that a worker takes.
"""

import contextlib
import logging
import multiprocessing
import os
import queue
import signal
import threading
import time
from collections import deque
from collections.abc import Callable, Generator, Sequence
from dataclasses import dataclass
from multiprocessing import resource_tracker
from multiprocessing.connection import Connection, wait
from pathlib import Path

from cudal2_agent.contract.errors import KnowledgeError, SourceError
from cudal2_agent.contract.records.knowledge import SplitFile
from cudal2_agent.indexer.walk import load

Split = Callable[[str, bytes], SplitFile]
_READY = "ready"
_START_TIMEOUT_S = 120.0
_POLL_S = 0.2
_AHEAD = 32  # results that are queued while the store embeds
_INTERRUPT = frozenset({signal.SIGINT})


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
        ready = wait([worker.connection for worker in self._workers], timeout=_POLL_S)
        results = []
        for index, worker in enumerate(self._workers):
            reason = ""
            if worker.connection in ready:
                try:
                    results += worker.take()
                except (EOFError, ConnectionError):
                    reason = worker.died()
            elif worker.late(self._timeout_s):
                reason = f"it took more than {self._timeout_s:g} s"
            if reason:
                results += [SplitResult(worker.path, reason=reason)] if worker.path else []
                worker.end()
                self._workers[index] = self._worker()
        return results

    def stop(self) -> None:
        for worker in self._workers:
            worker.end()

    def _worker(self) -> "_SplitWorker":
        try:
            return _SplitWorker(self._root, self._split)
        except OSError as exc:
            raise KnowledgeError(f"a process that splits files cannot be started: {exc.strerror or exc}") from exc


class _SplitWorker:
    """One process and its current file. Its time limit starts when it is ready."""

    def __init__(self, root: Path, split: Split) -> None:
        context = multiprocessing.get_context("spawn")  # the parent has threads
        self.connection, theirs = context.Pipe()
        self.path = ""
        self.since = time.monotonic()
        self._started = False
        self._process = context.Process(target=_serve, args=(theirs, root, split), daemon=True)
        resource_tracker.ensure_running()  # starting it later would lift the mask that follows
        mask = signal.pthread_sigmask(signal.SIG_BLOCK, _INTERRUPT)  # inherited: only the parent handles Ctrl-C
        try:
            self._process.start()
        finally:
            signal.pthread_sigmask(signal.SIG_SETMASK, mask)
            theirs.close()

    def give(self, path: str) -> None:
        self.path, self.since = path, time.monotonic()
        with contextlib.suppress(ConnectionError):  # the worker died while idle; `finished` will notice
            self.connection.send(path)

    def take(self) -> list[SplitResult]:
        """The worker's message. Raises: EOFError or ConnectionError if the process has ended."""
        message = self.connection.recv()
        if message == _READY:
            self._started, self.since = True, time.monotonic()
            return []
        self.path = ""
        return [message]

    def late(self, timeout_s: float) -> bool:
        """Whether the file takes too long. Raises: KnowledgeError if the worker never became ready."""
        taken = time.monotonic() - self.since
        if not self._started and taken > _START_TIMEOUT_S:
            raise KnowledgeError(f"a process that splits files was not ready after {taken:.0f} s; is the machine overloaded?")
        return self._started and bool(self.path) and taken > timeout_s

    def died(self) -> str:
        """How the process ended. Raises: KnowledgeError if it never became ready, since the next one would fail as well."""
        self._process.join(_POLL_S)
        code = self._process.exitcode
        if not self._started:
            raise KnowledgeError(f"the processes that split files cannot be started (exit code {code}); see their output above")
        return f"it ended the process ({f'signal {-code}' if code is not None and code < 0 else f'exit code {code}'})"

    def end(self) -> None:
        self.connection.close()
        self._process.kill()
        self._process.join()


def _serve(connection: "Connection[object, object]", root: Path, split: Split) -> None:
    """The main function of a worker: receives paths and sends results until the connection is closed."""
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    signal.pthread_sigmask(signal.SIG_UNBLOCK, _INTERRUPT)
    threading.Thread(target=_die_with_parent, daemon=True).start()
    logging.disable(logging.WARNING)  # libraries log remarks on a file; the result contains what matters
    with contextlib.suppress(EOFError, ConnectionError):
        connection.send(_READY)
        while True:
            connection.send(_result(root, str(connection.recv()), split))


def _die_with_parent() -> None:
    """End this worker with its parent. A worker that is splitting a file does not notice that the pipe was closed."""
    parent = multiprocessing.parent_process()
    if parent is not None:
        parent.join()
        os._exit(1)


def _result(root: Path, path: str, split: Split) -> SplitResult:
    try:
        return SplitResult(path, split(path, load(root, path)))
    except SourceError as exc:
        return SplitResult(path, reason=str(exc).removeprefix(f"{path}: "), unreadable=True)
    except OSError as exc:
        return SplitResult(path, reason=f"cannot be read: {exc.strerror or exc}", unreadable=True)
    except Exception as exc:  # noqa: BLE001 (one bad file must not end the run; a notice names the file)
        return SplitResult(path, reason=f"the splitter failed with {type(exc).__name__}")
