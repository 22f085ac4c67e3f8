"""Worker processes of a measurement: each takes tasks from the board, and is replaced when a task ends or outlasts it."""

import contextlib
import json
import os
import queue
import signal
import subprocess
import threading
import time
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

from benchmarks.modules.queueing import Board, Item
from benchmarks.modules.rows import Row

START_S = 120.0  # to the first message of a worker
PREPARE_FACTOR = 3.0  # compilers take longer than what runs on the GPU
TURN_S = 300.0  # of waiting for a turn
STARTS = 3  # of workers that end before they are ready, after which their place stays empty


class _Gone(Exception):
    """A worker is gone, or has to go: why."""


class _WorkerProcess:
    """A worker process in a process group of its own, whose lines are read by a thread."""

    def __init__(self, command: Sequence[str], environment: dict[str, str], log: Path) -> None:
        with log.open("ab") as errors:
            self._process = subprocess.Popen(
                command,
                stdin=subprocess.PIPE,
                stdout=subprocess.PIPE,
                stderr=errors,
                env=environment,
                text=True,
                start_new_session=True,
            )
        self._lines: queue.Queue[str | None] = queue.Queue()
        threading.Thread(target=self._read, daemon=True).start()

    def tell(self, line: str) -> None:
        """Raises: _Gone."""
        assert self._process.stdin is not None
        try:
            self._process.stdin.write(line + "\n")
            self._process.stdin.flush()
        except OSError as exc:
            raise _Gone("it has ended before the task") from exc

    def answer(self, limit_s: float) -> dict[str, Any]:
        """The next message. Raises: _Gone."""
        try:
            line = self._lines.get(timeout=limit_s)
        except queue.Empty as exc:
            raise _Gone(f"more than {limit_s:.0f} s") from exc
        if line is None:
            with contextlib.suppress(ChildProcessError):  # the end of the run has reaped it
                os.waitid(os.P_PID, self._process.pid, os.WEXITED | os.WNOWAIT)
            self.kill()
            raise _Gone(f"the process ended with {self._process.returncode}")
        found: dict[str, Any] = json.loads(line)
        return found

    def kill(self) -> None:
        """The whole group, before the worker is reaped: one that crashed leaves its compilers behind."""
        if self._process.returncode is None:
            with contextlib.suppress(ProcessLookupError):
                os.killpg(self._process.pid, signal.SIGKILL)
        self._process.wait()

    def _read(self) -> None:
        assert self._process.stdout is not None
        for line in self._process.stdout:
            if line.startswith("{"):  # anything else is what a library prints as it is imported
                self._lines.put(line)
        self._lines.put(None)


class Crew:
    """`workers` processes for each of `gpus` GPUs. `command`: of a worker, by the number of its GPU; `say`: keeps a row."""

    def __init__(
        self,
        board: Board,
        *,
        gpus: int,
        workers: int,
        command: Callable[[int], Sequence[str]],
        head: Callable[[Item], Row],
        say: Callable[[Row], None],
        logs: Path,
        limit_s: float = 90.0,
    ) -> None:
        self._board, self._command, self._head, self._say = board, command, head, say
        self._logs, self._limit_s = logs, limit_s
        self._lock, self._processes, self._over = threading.Lock(), set[_WorkerProcess](), False
        self._threads = [
            threading.Thread(target=self._work, args=(gpu, place), daemon=True)
            for gpu in range(gpus)
            for place in range(workers)
        ]

    def run(self, seconds: float) -> bool:
        """Measure until the board is empty, or so many seconds have passed. Returns whether it is empty."""
        end = time.monotonic() + seconds
        for thread in self._threads:
            thread.start()
        for thread in self._threads:
            thread.join(max(end - time.monotonic(), 0.0))
        complete = not any(thread.is_alive() for thread in self._threads)
        with self._lock:
            self._over = True
            left = list(self._processes)
        self._board.close()
        for process in left:
            process.kill()
        for thread in self._threads:
            thread.join(5.0)
        return complete and not self._board.waiting

    def _work(self, gpu: int, place: int) -> None:
        """One worker's place: its processes, one after another."""
        starts = 0
        while starts < STARTS and not self._over:
            process = self._started(gpu, place)
            if process is None:
                return
            try:
                process.answer(START_S)
                starts = 0
                while (item := self._board.take(gpu)) is not None:
                    self._measure(gpu, process, item)
                return
            except _Gone:
                starts += 1
            finally:
                process.kill()
                with self._lock:
                    self._processes.discard(process)

    def _started(self, gpu: int, place: int) -> _WorkerProcess | None:
        with self._lock:
            if self._over:
                return None
            environment = {**os.environ, "CUDA_VISIBLE_DEVICES": _visible(gpu)}
            process = _WorkerProcess(self._command(gpu), environment, self._logs / f"worker-{gpu}-{place}.log")
            self._processes.add(process)
            return process

    def _measure(self, gpu: int, process: _WorkerProcess, item: Item) -> None:
        """One task's row, whatever becomes of the worker. Raises: _Gone."""
        stage, begin, row = "start", time.monotonic(), None
        try:
            process.tell(str(item.file))
            while row is None:
                message = process.answer(_limit(stage, self._limit_s))
                stage, row = message.get("stage", stage), message.get("row")
        except _Gone as exc:
            if not self._over:
                wall_s = round(time.monotonic() - begin, 1)
                self._say(self._head(item) | {"status": "failed", "message": f"in {stage}: {exc}", "wall_s": wall_s, "on": gpu})
            self._board.done(gpu, item)
            raise
        if again := lacks_memory(row) and not item.alone:
            row = None
        self._board.done(gpu, item, again_alone=again)
        if row is not None:
            self._say(row | {"on": gpu})


def lacks_memory(row: Row) -> bool:
    """Whether a task was not measured for lack of memory, which other workers may have held."""
    return row.get("status") in ("failed", "crashed") and "memory" in str(row.get("message", "")).replace("shared memory", "")


def _limit(stage: str, limit_s: float) -> float:
    """Seconds to a worker's next message."""
    return TURN_S if stage == "wait" else limit_s * (PREPARE_FACTOR if stage in ("prepare", "cpu", "start") else 1.0)


def _visible(gpu: int) -> str:
    """A GPU's name among those that this process sees."""
    names = [name for name in os.environ.get("CUDA_VISIBLE_DEVICES", "").split(",") if name]
    return names[gpu] if gpu < len(names) else str(gpu)
