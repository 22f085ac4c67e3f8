"""One worker process and the lines exchanged with it. Every wait has a deadline; the process cannot block its parent."""

import os
import selectors
import signal
import subprocess
import time
from collections.abc import Sequence
from pathlib import Path
from typing import IO

from cudal2_agent.contract.errors import WorkerError
from cudal2_agent.sandbox.workers.messages import MAX_LINE_BYTES, ProtocolError
from cudal2_agent.sandbox.workers.process import Limits, child_environment, confine, kill_group

TAIL_BYTES = 16 * 1024
_BLOCK_BYTES = 1 << 16
_GRACE_S = 1.0
_REAP_S = 30.0  # a GPU may take a while to release a process that was killed in a hung kernel


class ChannelClosed(Exception):
    """The process ended, or closed its output, with no complete line left."""


class DeadlinePassed(Exception):
    """No complete line arrived in time."""


class Channel:
    """Starts a command in its scratch folder, confined, in its own process group.

    Every wait also reads its stderr, of which the last `TAIL_BYTES` are kept. Raises: WorkerError where it cannot be
    started.
    """

    def __init__(self, command: Sequence[str], scratch: Path, limits: Limits, extra: dict[str, str] | None = None) -> None:
        try:
            self._process = subprocess.Popen(
                confine(command, limits),
                cwd=scratch,
                env=child_environment(scratch.resolve(), extra),
                stdin=subprocess.PIPE,
                stdout=subprocess.PIPE,
                stderr=subprocess.PIPE,
                bufsize=0,
                start_new_session=True,
            )
        except OSError as exc:
            raise WorkerError(f"cannot start {command[0]!r}: {exc}") from exc
        assert self._process.stdin is not None
        assert self._process.stdout is not None
        assert self._process.stderr is not None
        self._stdin, self._stdout, self._stderr = self._process.stdin, self._process.stdout, self._process.stderr
        for pipe in (self._stdin, self._stdout, self._stderr):
            os.set_blocking(pipe.fileno(), False)
        self._lines = bytearray()
        self._tail = bytearray()
        self._selector = selectors.DefaultSelector()
        self._selector.register(self._stdout, selectors.EVENT_READ)
        self._selector.register(self._stderr, selectors.EVENT_READ)
        self._exit: str | None = None

    @property
    def stderr_tail(self) -> str:
        return self._tail.decode(errors="replace").strip()

    def send(self, line: bytes, deadline: float) -> None:
        """Write a line. Raises: ChannelClosed, DeadlinePassed (by `time.monotonic`)."""
        self._selector.register(self._stdin, selectors.EVENT_WRITE)
        rest = memoryview(line)
        try:
            while rest:
                if self._wait(deadline):
                    rest = rest[os.write(self._stdin.fileno(), rest) :]
        except BrokenPipeError as exc:
            raise ChannelClosed from exc
        finally:
            self._selector.unregister(self._stdin)

    def receive(self, deadline: float) -> bytes:
        """The next complete line without its newline. Raises: ChannelClosed, DeadlinePassed, ProtocolError."""
        while (end := self._lines.find(b"\n")) < 0:
            if self._stdout.closed:
                raise ChannelClosed
            if len(self._lines) > MAX_LINE_BYTES:
                raise ProtocolError(f"a line of more than {MAX_LINE_BYTES} bytes")
            self._wait(deadline)
        line = bytes(self._lines[:end])
        del self._lines[: end + 1]
        return line

    def kill(self) -> str:
        """End the process group, reap it, and return how it ended. Raises: WorkerError where it does not end."""
        if self._exit is None:
            self._exit = self._end()
        return self._exit

    def close(self, patience_s: float) -> None:
        """Ask the process to end by closing its input; after `patience_s`, kill what is left of its group."""
        if self._exit is None:
            self._stdin.close()
            deadline = time.monotonic() + patience_s
            try:
                while True:
                    self.receive(deadline)
            except (ChannelClosed, DeadlinePassed, ProtocolError):
                self.kill()

    def _wait(self, deadline: float) -> bool:
        """Read what is available, waiting until the deadline at most; True where stdin can be written."""
        remaining_s = deadline - time.monotonic()
        if remaining_s <= 0:
            raise DeadlinePassed
        writable = False
        for key, _ in self._selector.select(remaining_s):
            if key.fileobj is self._stdin:
                writable = True
            elif key.fileobj is self._stdout:
                self._lines += self._read(self._stdout)
            else:
                self._tail += self._read(self._stderr)
                del self._tail[:-TAIL_BYTES]
        return writable

    def _read(self, pipe: IO[bytes]) -> bytes:
        block = os.read(pipe.fileno(), _BLOCK_BYTES)
        if not block:
            self._selector.unregister(pipe)
            pipe.close()
        return block

    def _end(self) -> str:
        if self._stdout.closed:  # it is ending by itself: let it, so that its own exit is reported
            self._drain_stderr(time.monotonic() + _GRACE_S)
        kill_group(self._process)
        self._drain_stderr(time.monotonic() + _GRACE_S)
        try:
            code = self._process.wait(timeout=_REAP_S)
        except subprocess.TimeoutExpired as exc:
            raise WorkerError(
                f"worker process {self._process.pid} does not end {_REAP_S:.0f} s after it was killed; "
                "the GPU may need a reset (nvidia-smi --gpu-reset)",
                log=self.stderr_tail,
            ) from exc
        finally:
            self._selector.close()
            for pipe in (self._stdin, self._stdout, self._stderr):
                if not pipe.closed:
                    pipe.close()
        return _describe_exit(code)

    def _drain_stderr(self, deadline: float) -> None:
        while not self._stderr.closed:
            try:
                self._wait(deadline)
            except DeadlinePassed:
                return


def _describe_exit(code: int) -> str:
    if code < 0:
        try:
            return f"killed by {signal.Signals(-code).name}"
        except ValueError:
            return f"killed by signal {-code}"
    return f"exit code {code}"
