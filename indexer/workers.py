"""Splits files in processes of their own, one file each at a time, so that a file that kills or hangs one is known.

Covered: a worker that dies or exceeds the time limit costs its file and is replaced; Ctrl-C and a killed parent end them all.
Not covered: the memory that a worker takes.
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

from contract.errors import KnowledgeError, SourceError
from contract.knowledge import SplitFile
from indexer.walk import load

Split = Callable[[str, bytes], SplitFile]
_READY = "ready"
_START_TIMEOUT_S = 120.0
_POLL_S = 0.2
_AHEAD = 32  # results that may wait while the store embeds
_INTERRUPT = frozenset({signal.SIGINT})


@dataclass(frozen=True)
class Outcome:
    """What came of a file: pieces, or why there are none; `unreadable` where it is the file's fault and not the splitter's."""

    path: str
    split: SplitFile | None = None
    reason: str = ""
    unreadable: bool = False


def split_files(paths: Sequence[str], root: Path, split: Split, jobs: int, timeout_s: float) -> Generator[Outcome, None, None]:
    """The outcome of every path, as they come; splitting goes on while the caller is busy with the last one.

    Raises: KnowledgeError where workers cannot be started.
    """
    done: queue.Queue[Outcome | BaseException | None] = queue.Queue(_AHEAD)
    stop = threading.Event()
    pump = threading.Thread(target=_pump, args=(_Pool(root, split, timeout_s), deque(paths), jobs, done, stop), daemon=True)
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
    pool: "_Pool", waiting: deque[str], jobs: int, done: "queue.Queue[Outcome | BaseException | None]", stop: threading.Event
) -> None:
    def put(item: Outcome | BaseException | None) -> None:
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
            for outcome in pool.finished():
                put(outcome)
        put(None)
    except BaseException as exc:  # noqa: BLE001 (handed over to the thread that waits for it)
        put(exc)
    finally:
        pool.stop()


class _Pool:
    """Workers and what each has in hand."""

    def __init__(self, root: Path, split: Split, timeout_s: float) -> None:
        self._root = root
        self._split = split
        self._timeout_s = timeout_s
        self._workers: list[_Worker] = []

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

    def finished(self) -> list[Outcome]:
        """What has come since the last call, waiting a moment for it; dead and late workers are replaced."""
        ready = wait([worker.connection for worker in self._workers], timeout=_POLL_S)
        outcomes = []
        for index, worker in enumerate(self._workers):
            reason = ""
            if worker.connection in ready:
                try:
                    outcomes += worker.take()
                except (EOFError, ConnectionError):
                    reason = worker.died()
            elif worker.late(self._timeout_s):
                reason = f"it took more than {self._timeout_s:g} s"
            if reason:
                outcomes += [Outcome(worker.path, reason=reason)] if worker.path else []
                worker.end()
                self._workers[index] = self._worker()
        return outcomes

    def stop(self) -> None:
        for worker in self._workers:
            worker.end()

    def _worker(self) -> "_Worker":
        try:
            return _Worker(self._root, self._split)
        except OSError as exc:
            raise KnowledgeError(f"a process that splits files cannot be started: {exc.strerror or exc}") from exc


class _Worker:
    """One process and the file it has in hand; its clock runs from when it is ready."""

    def __init__(self, root: Path, split: Split) -> None:
        context = multiprocessing.get_context("spawn")  # the parent has threads
        self.connection, theirs = context.Pipe()
        self.path = ""
        self.since = time.monotonic()
        self._started = False
        self._process = context.Process(target=_serve, args=(theirs, root, split), daemon=True)
        resource_tracker.ensure_running()  # its first start would lift the mask that follows
        mask = signal.pthread_sigmask(signal.SIG_BLOCK, _INTERRUPT)  # inherited: Ctrl-C is the parent's affair from the first
        try:
            self._process.start()
        finally:
            signal.pthread_sigmask(signal.SIG_SETMASK, mask)
            theirs.close()

    def give(self, path: str) -> None:
        self.path, self.since = path, time.monotonic()
        with contextlib.suppress(ConnectionError):  # it died idle; the next look at it says so
            self.connection.send(path)

    def take(self) -> list[Outcome]:
        """Raises: EOFError or ConnectionError where the process is gone."""
        message = self.connection.recv()
        if message == _READY:
            self._started, self.since = True, time.monotonic()
            return []
        self.path = ""
        return [message]

    def late(self, timeout_s: float) -> bool:
        """Whether its file takes too long. Raises: KnowledgeError where it does not even get ready."""
        taken = time.monotonic() - self.since
        if not self._started and taken > _START_TIMEOUT_S:
            raise KnowledgeError(f"a process that splits files was not ready after {taken:.0f} s; is the machine overloaded?")
        return self._started and bool(self.path) and taken > timeout_s

    def died(self) -> str:
        """How the process ended. Raises: KnowledgeError where it never got ready: so would the next."""
        self._process.join(_POLL_S)
        code = self._process.exitcode
        if not self._started:
            raise KnowledgeError(f"the processes that split files cannot be started (exit code {code}); see what they printed")
        return f"it ended the process ({f'signal {-code}' if code is not None and code < 0 else f'exit code {code}'})"

    def end(self) -> None:
        self.connection.close()
        self._process.kill()
        self._process.join()


def _serve(connection: "Connection[object, object]", root: Path, split: Split) -> None:
    """The life of a worker: paths in, outcomes out, until the other end is closed."""
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    signal.pthread_sigmask(signal.SIG_UNBLOCK, _INTERRUPT)
    threading.Thread(target=_die_with_parent, daemon=True).start()
    logging.disable(logging.WARNING)  # a library's remarks on a file; what matters is in the outcome
    with contextlib.suppress(EOFError, ConnectionError):
        connection.send(_READY)
        while True:
            connection.send(_outcome(root, str(connection.recv()), split))


def _die_with_parent() -> None:
    """A parent that is killed closes the pipe, which a worker deep in a file would not notice."""
    parent = multiprocessing.parent_process()
    if parent is not None:
        parent.join()
        os._exit(1)


def _outcome(root: Path, path: str, split: Split) -> Outcome:
    try:
        return Outcome(path, split(path, load(root, path)))
    except SourceError as exc:
        return Outcome(path, reason=str(exc).removeprefix(f"{path}: "), unreadable=True)
    except OSError as exc:
        return Outcome(path, reason=f"cannot be read: {exc.strerror or exc}", unreadable=True)
    except Exception as exc:  # noqa: BLE001 (one odd file must not end the run; the notice names it)
        return Outcome(path, reason=f"the splitter failed with {type(exc).__name__}")
