"""A link to a worker behind a command: ssh, srun, kubectl exec, docker, or a program of this machine.

Covered: a command that waits for its worker for minutes, prints banners, ends, falls silent, floods, sends what is no answer,
answers a call that is over; a worker of another version; calls of several threads. It is started again at the next call.
Not covered: a command that leaves processes behind in a session of their own.
"""

import logging
import os
import queue
import secrets
import shlex
import shutil
import subprocess
import threading
import time
from collections import deque
from collections.abc import Generator
from contextlib import suppress
from typing import IO

from cudal2_agent.contract.base import Record
from cudal2_agent.contract.errors import DeviceUnavailable, UsageError
from cudal2_agent.contract.records.task import Arch
from cudal2_agent.sandbox.remote.calls import CancelCall, FarCall
from cudal2_agent.sandbox.remote.far_answers import (
    FROM_WORKER,
    CallAnswer,
    EndAnswer,
    ErrorAnswer,
    EventAnswer,
    FarAnswer,
    TunedAnswer,
    WorkerHello,
)
from cudal2_agent.sandbox.remote.frames import MAX_FRAME_BYTES, BrokenFrame, framed, framed_text, record_of
from cudal2_agent.sandbox.remote.limits import limit_s
from cudal2_agent.sandbox.remote.link import LinkLost, WaitTold
from cudal2_agent.sandbox.remote.same_version import code_hash, require_same
from cudal2_agent.sandbox.workers.process import kill_group, launcher_environment

SILENCE_S = 60.0  # without a sign of life, after which a worker counts as lost
CLOSE_PATIENCE_S = 5.0
RESTART_PAUSES_S = (2.0, 10.0)  # a network that is interrupted comes back; the first start fails at once
FLOOD_BYTES = 64 << 20  # of text and events between two answers
_BANNER_BYTES = 1 << 20
_TAIL_LINES = 50
_POLL_S = 0.2
_REAP_S = 10.0
_OWN_END_S = 1.0  # that a command which has closed its stdout has to end by itself, so that its own exit is reported

logger = logging.getLogger(__name__)


class CommandLink:
    """One worker at a time. `wait_s`: until a command must have a worker, queues of a cluster included."""

    is_slow = False

    def __init__(self, command: str, wait_s: float) -> None:
        """Raises: UsageError for a command that cannot be read."""
        try:
            self._words = shlex.split(command)
        except ValueError as exc:
            raise UsageError(f"--device exec:{command}: {exc}") from exc
        if not self._words:
            raise UsageError('--device exec: has no command; write for example --device "exec:ssh gpu1 cudal2-agent worker"')
        self.where, self._wait_s = f"exec:{command}", wait_s
        self._lock = threading.Lock()
        self._talk: _Talk | None = None
        self._closed = False
        self.queued_s = 0.0

    @property
    def arch(self) -> Arch:
        """As the worker says, which is started if there is none. Raises: DeviceUnavailable."""
        return self._started().hello.arch

    def new_id(self) -> str:
        return secrets.token_hex(16)

    def call(self, call: FarCall, cancel: threading.Event | None = None) -> Generator[FarAnswer]:
        """See `Link.call`."""
        yield from self._started().call(call, cancel)

    def break_off(self, reason: str) -> None:
        if self._talk is not None:
            self._talk.lose(reason)

    def close(self) -> None:
        self._closed = True
        with self._lock:
            if self._talk is not None:
                self._talk.close()
                self._talk = None

    def _started(self) -> "_Talk":
        """The worker at hand, else a new one. Raises: DeviceUnavailable."""
        with self._lock:
            if self._closed:
                raise DeviceUnavailable(f"{self.where} was closed")
            if self._talk is None or self._talk.lost:
                begin_s, again = time.monotonic(), self._talk is not None
                self._talk = self._start(RESTART_PAUSES_S if again else ())
                self.queued_s += time.monotonic() - begin_s if again else 0.0
            return self._talk

    def _start(self, pauses_s: tuple[float, ...]) -> "_Talk":
        for pause_s in pauses_s:
            try:
                return _Talk(self._words, self.where, self._wait_s)
            except DeviceUnavailable as exc:
                logger.warning("%s; trying again in %.0f s", exc, pause_s)
                time.sleep(pause_s)
        return _Talk(self._words, self.where, self._wait_s)


class _Talk:
    """One process and what is said to it. Its stdout and its stderr are read by a thread each."""

    def __init__(self, words: list[str], where: str, wait_s: float) -> None:
        """Start the command and wait for its worker. Raises: DeviceUnavailable."""
        self._where = where
        self.lost = ""
        self._heard_s = time.monotonic()
        self._calls: dict[str, queue.SimpleQueue[FarAnswer | LinkLost]] = {}
        self._worked_s: dict[str, float] = {}
        self._writing, self._losing = threading.Lock(), threading.Lock()
        self._tail: deque[str] = deque(maxlen=_TAIL_LINES)
        self._flood = 0
        if shutil.which(words[0]) is None:
            raise DeviceUnavailable(f"{where}: there is no program {words[0]!r} here")
        try:
            self._process = subprocess.Popen(
                words,
                stdin=subprocess.PIPE,
                stdout=subprocess.PIPE,
                stderr=subprocess.PIPE,
                env=launcher_environment(),
                start_new_session=True,
            )
        except OSError as exc:
            raise DeviceUnavailable(f"{where} cannot be started: {exc.strerror}") from exc
        self._errors = threading.Thread(target=self._read_stderr, daemon=True)
        self._errors.start()
        try:
            self.hello = self._greeted(wait_s)
        except BaseException:
            self.lose("it did not start")
            raise
        threading.Thread(target=self._read, daemon=True).start()

    def call(self, call: FarCall, cancel: threading.Event | None) -> Generator[FarAnswer]:
        """See `Link.call`."""
        answers = self._calls[call.id] = queue.SimpleQueue()
        ended = False
        try:
            self._send(call)
            while not ended:
                answer = self._next(call, answers, cancel)
                if answer is None:
                    return
                ended = isinstance(answer, EndAnswer | ErrorAnswer)
                yield answer
        finally:
            self._calls.pop(call.id, None)
            self._worked_s.pop(call.id, None)
            if not ended and not self.lost:
                with suppress(LinkLost):
                    self._send(CancelCall(id=call.id))

    def lose(self, reason: str) -> None:
        """End the process. Every call in progress raises `LinkLost`. Idempotent: the first reason counts."""
        with self._losing:
            if self.lost:
                return
            ended = self._killed()
            self._errors.join(_OWN_END_S)  # its last line says why
            last = self._tail[-1] if self._tail else ""
            self.lost = "; ".join(part for part in (reason, ended, last[:300]) if part)
        for answers in list(self._calls.values()):
            answers.put(LinkLost(self.lost))

    def close(self) -> None:
        """Ask the worker to end, then kill what is left."""
        if not self.lost:
            with suppress(OSError, ValueError):
                self._pipe(self._process.stdin).close()
            with suppress(subprocess.TimeoutExpired):
                self._process.wait(CLOSE_PATIENCE_S)
        self.lose("it was closed")

    def _next(
        self, call: FarCall, answers: "queue.SimpleQueue[FarAnswer | LinkLost]", cancel: threading.Event | None
    ) -> FarAnswer | None:
        """The next answer; None once the call is cancelled. Raises: LinkLost."""
        while True:
            try:
                answer = answers.get(timeout=_POLL_S)
            except queue.Empty:
                if cancel is not None and cancel.is_set():
                    return None
                if self.lost:  # it was lost before the call was known
                    raise LinkLost(self.lost) from None
                silent_s = time.monotonic() - self._heard_s
                if silent_s > SILENCE_S:
                    self.lose(f"no sign of life for {silent_s:.0f} s")
                elif self._worked_s.get(call.id, 0.0) > (most_s := limit_s(call)):
                    self.lose(f"a call took more than {most_s:.0f} s of work, which is more than all its limits")
                continue
            if isinstance(answer, LinkLost):
                raise answer
            return answer

    def _send(self, record: Record) -> None:
        """Raises: LinkLost."""
        line = framed(record)
        try:
            with self._writing:  # a worker that reads nothing falls silent, and is killed: then this ends
                self._pipe(self._process.stdin).write(line)
                self._pipe(self._process.stdin).flush()
        except (OSError, ValueError) as exc:
            self.lose("it reads no calls any more")
            raise LinkLost(self.lost) from exc

    def _greeted(self, wait_s: float) -> WorkerHello:
        """The hello of a worker of the same version. Raises: DeviceUnavailable."""
        told, found = WaitTold(self._where, logger), queue.SimpleQueue[bytes | str]()
        threading.Thread(target=self._await_frame, args=(found,), daemon=True).start()
        end_s = time.monotonic() + wait_s
        while True:
            try:
                text = found.get(timeout=min(_POLL_S * 5, max(end_s - time.monotonic(), 0.0)))
                break
            except queue.Empty:
                if time.monotonic() >= end_s:
                    raise self._unavailable(f"no worker answered within {wait_s:.0f} s (worker_wait_s)") from None
                told.look()
        if isinstance(text, str):
            raise self._unavailable(text)
        require_same(text, self._where)
        try:
            hello = WorkerHello.model_validate_json(text)
        except ValueError as exc:
            raise self._unavailable(f"its hello cannot be read: {str(exc).splitlines()[0]}") from exc
        if hello.code != code_hash():
            logger.warning("%s runs other sources of the sandbox than this side, of the same version", self._where)
        self._heard_s = time.monotonic()
        return hello

    def _await_frame(self, found: "queue.SimpleQueue[bytes | str]") -> None:
        """Puts the text of the first frame, or why there is none. What comes before it is somebody's banner."""
        banner = 0
        while line := self._line():
            try:
                if (text := framed_text(line)) is not None:
                    found.put(text)
                    return
            except BrokenFrame as exc:
                found.put(str(exc))
                return
            banner += len(line)
            self._tail.append(line.decode(errors="replace").strip())
            if banner > _BANNER_BYTES:
                found.put(f"it wrote more than {_BANNER_BYTES >> 20} MiB that is no answer of a worker")
                return
        with suppress(subprocess.TimeoutExpired):
            self._process.wait(_OWN_END_S)
        found.put("it ended before a worker answered")

    def _unavailable(self, reason: str) -> DeviceUnavailable:
        said = "\n".join(self._tail)
        self.lose(reason)
        return DeviceUnavailable(f"{self._where}: {self.lost}", log=said if len(self._tail) > 1 else "")

    def _read(self) -> None:
        """Hand out answers until the stream ends or makes no sense."""
        try:
            while line := self._line():
                self._heard_s = time.monotonic()
                self._take(line)
                if self._flood > FLOOD_BYTES:
                    raise BrokenFrame(f"more than {FLOOD_BYTES >> 20} MiB without an answer")
            reason = "it ended"
            with suppress(subprocess.TimeoutExpired):
                self._process.wait(_OWN_END_S)
        except (BrokenFrame, OSError, ValueError) as exc:
            reason = str(exc)
        self.lose(reason)

    def _take(self, line: bytes) -> None:
        text = framed_text(line)
        self._flood += len(line)
        if text is None:
            self._tail.append(line.decode(errors="replace").strip()[:1000])
            return
        found = record_of(FROM_WORKER, text)
        if not isinstance(found, CallAnswer):
            self._worked_s.update(found.worked_s)
        elif (answers := self._calls.get(found.id)) is not None:  # else the call is over
            answers.put(found.answer)
            if not isinstance(found.answer, EventAnswer | TunedAnswer):
                self._flood = 0

    def _line(self) -> bytes:
        """The next line; empty at the end. Raises: BrokenFrame."""
        try:
            line = self._pipe(self._process.stdout).readline(MAX_FRAME_BYTES + 1)
        except (OSError, ValueError):
            return b""
        if len(line) > MAX_FRAME_BYTES:
            raise BrokenFrame(f"a line of more than {MAX_FRAME_BYTES >> 20} MiB")
        return line

    def _read_stderr(self) -> None:
        with suppress(OSError, ValueError):
            while line := self._pipe(self._process.stderr).readline(1 << 16):
                if said := line.decode(errors="replace").strip():
                    self._tail.append(said[:1000])

    def _killed(self) -> str:
        """How the process ended; it is killed if it has not."""
        if self._process.poll() is None:
            kill_group(self._process)
            with suppress(subprocess.TimeoutExpired):
                self._process.wait(_REAP_S)
            return ""
        code = self._process.returncode
        with suppress(ProcessLookupError, PermissionError):
            os.killpg(self._process.pid, 9)  # what it has left behind
        return f"exit code {code}" if code >= 0 else f"signal {-code}"

    @staticmethod
    def _pipe(pipe: IO[bytes] | None) -> IO[bytes]:
        assert pipe is not None
        return pipe
