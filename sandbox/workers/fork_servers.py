"""Servers that fork a child for each request (`forking.py`): started when all are busy, kept idle, asked one at a time.

Covered: the limits of each request; a wall-clock limit and cancelling, which end the server with its child; a server that
dies; the death of this process, which ends its servers.
"""

import contextlib
import json
import os
import selectors
import subprocess
import sys
import threading
import time
import weakref
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from cudal2_agent.contract.errors import WorkerError
from cudal2_agent.sandbox.workers.forking import REQUEST
from cudal2_agent.sandbox.workers.process import ChildExit, Limits, child_environment, confine, kill_group

_POLL_S = 0.05
_END_S = 2.0  # that a server has to end its child and itself
_READ_BYTES = 1 << 16


class ForkServers:
    """Servers of one module. Thread-safe. An idle server is reused for requests of the same environment."""

    def __init__(self, module: str) -> None:
        self.command: tuple[str, ...] = (sys.executable, "-P", "-s", "-m", module)
        self._idle: list[_Server] = []
        self._lock = threading.Lock()
        weakref.finalize(self, _end_all, self._idle)

    def run(
        self, request: Mapping[str, Any], *, scratch: Path, limits: Limits, cancel: threading.Event | None = None
    ) -> ChildExit:
        """Answer a request in a scratch folder. Raises: WorkerError where no server can be started, OSError."""
        started, scratch = time.monotonic(), scratch.resolve()
        own = {"cpu_s": limits.cpu_s, "memory_bytes": limits.memory_bytes, "file_bytes": limits.file_bytes}
        (scratch / REQUEST).write_text(json.dumps({**request, **own}), encoding="utf-8")
        server = self._taken(limits)
        ended_by, answer = server.ask(scratch, started + limits.wall_s, cancel)
        if answer is not None:
            with self._lock:
                self._idle.append(server)
            returncode, said = int(answer["returncode"]), str(answer["said"]).encode()
        else:
            returncode, said = server.end()
        return ChildExit(returncode, b"", said, time.monotonic() - started, ended_by)

    def close(self) -> None:
        """End the idle servers."""
        with self._lock:
            _end_all(self._idle)

    def _taken(self, limits: Limits) -> "_Server":
        environment = child_environment(Path("/"), devices=limits.devices)
        with self._lock:
            for server in self._idle[::-1]:
                if server.process.poll() is not None:
                    self._idle.remove(server)
                    server.end()
                elif server.environment == environment and server.network == limits.network:
                    self._idle.remove(server)
                    return server
        return _Server.started(self.command, environment, network=limits.network)


@dataclass(frozen=True, eq=False)
class _Server:
    """One server. `network`: whether it was left the network, which its children then leave with their jail."""

    process: "subprocess.Popen[bytes]"
    environment: dict[str, str]
    network: bool

    @classmethod
    def started(cls, words: Sequence[str], environment: dict[str, str], *, network: bool) -> "_Server":
        """Raises: WorkerError."""
        # It outlives the thread that starts it, and ends with its stdin instead.
        command = confine(words, Limits(wall_s=0, network=network, die_with_parent=False))
        pipe = subprocess.PIPE
        try:
            process = subprocess.Popen(
                command, cwd="/", env=environment, stdin=pipe, stdout=pipe, stderr=pipe, start_new_session=True
            )
        except OSError as exc:
            raise WorkerError(f"cannot start {command[0]!r}: {exc}") from exc
        return cls(process, environment, network)

    def ask(self, scratch: Path, deadline: float, cancel: threading.Event | None) -> tuple[str, dict[str, Any] | None]:
        """What ended a request, and the answer; None where the deadline, `cancel` or the server's own end came first."""
        stdin, stdout = self.process.stdin, self.process.stdout
        assert stdin is not None
        assert stdout is not None
        try:
            stdin.write(os.fsencode(scratch) + b"\n")
            stdin.flush()
        except OSError:
            return "itself", None
        answer = bytearray()
        with selectors.DefaultSelector() as selector:
            selector.register(stdout.fileno(), selectors.EVENT_READ)
            while not answer.endswith(b"\n"):
                if time.monotonic() >= deadline:
                    return "wall-clock", None
                if cancel is not None and cancel.is_set():
                    return "cancel", None
                if selector.select(_POLL_S):
                    block = os.read(stdout.fileno(), _READ_BYTES)
                    if not block:
                        return "itself", None
                    answer += block
        return "itself", json.loads(answer)

    def end(self) -> tuple[int, bytes]:
        """End it with its child: its exit code, and what it wrote to stderr."""
        with self.process as process:
            assert process.stdin is not None
            assert process.stderr is not None
            with contextlib.suppress(OSError):
                process.stdin.close()
            try:
                process.wait(_END_S)
            except subprocess.TimeoutExpired:
                kill_group(process)
            return process.wait(), process.stderr.read()


def _end_all(idle: list[_Server]) -> None:
    while idle:
        idle.pop().end()
