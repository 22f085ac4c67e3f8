"""Kernels that are not built are built in the background, by one thread, each at most once in a process."""

import contextlib
import json
import logging
import queue
import shutil
import subprocess
import sys
import threading
from collections.abc import Callable
from pathlib import Path
from typing import NamedTuple, Protocol

from cudal2.dispatch.decision import FallbackCause
from cudal2_agent.contract.errors import Cudal2Error, LibraryError, UsageError
from cudal2_agent.contract.records.library import LibraryEntry
from cudal2_agent.contract.records.task import GemmTask

_LOG = logging.getLogger(__name__)
_PROGRAM = "cudal2-agent"
_TIMEOUT_S = 900.0
_END_S = 5.0
# Kernels for a padded M that a process builds: each takes seconds to prove, and a program may have a new M in every call.
MAX_PADDED = 64


class BuildOrder(NamedTuple):
    """`entry`: the library's, as it is there. `task`: what it is built for, its own or one of a smaller M.

    `ranged`: whether it is built for the range of M that the library has for it; `task` is then its own. `library`: where the
    entry is kept. `sms`: of the GPU that it is built for.
    """

    entry: LibraryEntry
    task: GemmTask
    library: Path
    sms: int
    ranged: bool = False

    @property
    def padded(self) -> bool:
        """Whether it is built for a smaller M than the entry has."""
        return self.task != self.entry.task

    @property
    def name(self) -> str:
        return f"{self.entry.id} for {'M below those of ' if self.ranged else ''}{self.task.shape}"


class EntryBuilder(Protocol):
    def build(self, order: BuildOrder) -> None:
        """Build the kernel into the cache of prepared kernels, and return when it is there. Raises: Cudal2Error."""
        ...


class CommandBuilder:
    """Runs `cudal2-agent library prepare`, in whose process the compiler is. A call of a model never compiles."""

    def build(self, order: BuildOrder) -> None:
        entry, library = ("--entry", order.entry.id), ("--library", str(order.library))
        shape = ("--range",) if order.ranged else ("--shape", order.task.shape) if order.padded else ()
        run_prepare(*entry, *shape, *library, "--sms", str(order.sms))


def run_prepare(*arguments: str) -> None:
    """Run `cudal2-agent library prepare` in a process of its own, and return when it is done.

    Raises: LibraryError with its reason, UsageError where it is not installed.
    """
    try:
        done = subprocess.run(_command(*arguments), capture_output=True, text=True, check=False, timeout=_TIMEOUT_S)
    except (OSError, subprocess.TimeoutExpired) as exc:
        raise LibraryError(f"{_PROGRAM} library prepare could not be run: {exc}") from exc
    if done.returncode:
        reason = _failure(done.stdout) or _last_line(done.stderr) or _last_line(done.stdout)
        raise LibraryError(reason or f"{_PROGRAM} library prepare ended with {done.returncode}", log=done.stdout + done.stderr)


def _command(*arguments: str) -> list[str]:
    beside = Path(sys.executable).with_name(_PROGRAM)
    program = str(beside) if beside.exists() else shutil.which(_PROGRAM)
    if program is None:
        raise UsageError(f"{_PROGRAM} is not installed beside this Python, so no kernel can be built; install it")
    return [program, "library", "prepare", *arguments, "--json"]


def _failure(stdout: str) -> str:
    """Why the entry failed, as its record says; empty where the command ended without one."""
    for line in stdout.splitlines():
        with contextlib.suppress(ValueError):
            record = json.loads(line)
            if isinstance(record, dict) and record.get("status") == "failed":
                return str(record.get("message", ""))
    return ""


def _last_line(text: str) -> str:
    return text.strip().rpartition("\n")[2]


class BackgroundBuilds:
    """A queue of builds. `done`: called by the building thread after each build, failed ones included."""

    def __init__(self, builder: EntryBuilder, done: Callable[[], None]) -> None:
        self._builder, self._done = builder, done
        self._lock = threading.Lock()
        self._idle = threading.Condition(self._lock)
        # Kernels for a padded M wait for those that are built for their own shape.
        self._orders: queue.PriorityQueue[tuple[bool, int, BuildOrder]] = queue.PriorityQueue()
        self._padded = 0
        self._thread: threading.Thread | None = None
        self._waiting: dict[str, None] = {}
        self._tried: set[str] = set()
        self._failed: dict[str, str] = {}

    def request(self, order: BuildOrder) -> FallbackCause:
        """Ask for a build. A kernel that was tried before and is not there is not tried again in this process.

        Of kernels for a padded M, a process builds `MAX_PADDED`: for the others there is no entry.
        """
        with self._lock:
            if order.name in self._waiting:
                return FallbackCause.BUILDING
            if order.name in self._tried:
                return FallbackCause.BUILD_FAILED
            if order.padded and self._padded >= MAX_PADDED:
                return FallbackCause.NO_ENTRY
            self._padded += order.padded
            self._waiting[order.name] = None
            self._tried.add(order.name)
            self._orders.put((order.padded, len(self._tried), order))
            if self._thread is None:
                self._start()
        return FallbackCause.BUILDING

    def waiting(self) -> tuple[str, ...]:
        with self._lock:
            return tuple(self._waiting)

    def failed(self) -> dict[str, str]:
        """Why a build failed, by what was built."""
        with self._lock:
            return dict(self._failed)

    def wait(self, timeout_s: float) -> bool:
        """Wait until nothing is being built; False where the time was not enough."""
        with self._idle:
            return self._idle.wait_for(lambda: not self._waiting, timeout_s)

    def _start(self) -> None:
        self._thread = threading.Thread(target=self._work, name="cudal2-builds", daemon=True)
        self._thread.start()

    def _work(self) -> None:
        """Build until nothing was ordered for a while. Another thread goes on where an unexpected error ends this one."""
        try:
            with contextlib.suppress(queue.Empty):
                while True:
                    self._build(self._orders.get(timeout=_END_S)[-1])
        finally:
            with self._lock:
                self._thread = None
                if not self._orders.empty():
                    self._start()

    def _build(self, order: BuildOrder) -> None:
        failure = "the build ended with an unexpected error"
        try:
            self._builder.build(order)
            failure = ""
        except Cudal2Error as exc:
            failure = str(exc)
            _LOG.warning("the kernel of entry %s could not be built, so PyTorch's own runs: %s", order.name, failure)
        finally:
            with self._idle:
                self._waiting.pop(order.name, None)
                if failure:
                    self._failed[order.name] = failure
                self._idle.notify_all()
            self._done()
