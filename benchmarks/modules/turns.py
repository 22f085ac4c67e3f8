"""Turns of processes on one GPU: many prepare and verify at the same time, and one that times has the GPU alone.

A process that shares gives the GPU back in the middle of its work when another one asks: between two instructions of Python, as
soon as its own work on the GPU has ended. So a long compilation or verification delays no timing. Covers processes that share
a folder of locks; the system releases the locks of a process that dies.
"""

import fcntl
import os
import signal
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Literal

ASKED_EVERY_S = 0.01
Held = Literal["nothing", "shared", "alone"]


class GpuTurn:
    """One process's part. `idle`: waits for the process's own work on the GPU; False where that is impossible just now.
    `tell_pause`: told True before a pause in the middle of work, and False after it.

    `held`: what it has now. `waited_s`: for turns so far; `paused_s`: of these, in the middle of work. Of a main thread only.
    """

    def __init__(self, folder: Path, idle: Callable[[], bool], tell_pause: Callable[[bool], None]) -> None:
        folder.mkdir(parents=True, exist_ok=True)
        self._gate, self._gpu, probe = (os.open(folder / name, os.O_RDWR | os.O_CREAT) for name in ("gate", "gpu", "gate"))
        self._idle, self._tell_pause, self._pausing = idle, tell_pause, False
        self.held: Held = "nothing"
        self.waited_s = self.paused_s = 0.0
        signal.signal(signal.SIGUSR1, self._asked)
        signal.siginterrupt(signal.SIGUSR1, False)
        main = threading.main_thread().ident
        assert main is not None
        threading.Thread(target=self._watch, args=(probe, main), daemon=True).start()

    def share(self) -> None:
        """Use the GPU beside others that share it."""
        if self.held != "shared":
            self.leave()
            with self._waiting():
                fcntl.flock(self._gate, fcntl.LOCK_EX)  # behind one who wants it alone
                fcntl.flock(self._gpu, fcntl.LOCK_SH)
                fcntl.flock(self._gate, fcntl.LOCK_UN)
            self.held = "shared"

    def alone(self) -> None:
        """Have the GPU alone. Those that share it pause first."""
        if self.held != "alone":
            self.leave()
            with self._waiting():
                fcntl.flock(self._gate, fcntl.LOCK_EX)  # kept: whoever comes waits here
                fcntl.flock(self._gpu, fcntl.LOCK_EX)
            self.held = "alone"

    def leave(self) -> None:
        """Use the GPU no more."""
        self.held = "nothing"
        fcntl.flock(self._gpu, fcntl.LOCK_UN)
        fcntl.flock(self._gate, fcntl.LOCK_UN)

    @contextmanager
    def _waiting(self) -> Iterator[None]:
        begin = time.monotonic()
        yield
        self.waited_s += time.monotonic() - begin

    def _watch(self, probe: int, main: int) -> None:
        """While this process shares, look whether another one stands at the gate."""
        while True:
            time.sleep(ASKED_EVERY_S)
            if self.held != "shared" or self._pausing:
                continue
            try:
                fcntl.flock(probe, fcntl.LOCK_SH | fcntl.LOCK_NB)
                fcntl.flock(probe, fcntl.LOCK_UN)
            except BlockingIOError:
                signal.pthread_kill(main, signal.SIGUSR1)

    def _asked(self, *_: object) -> None:
        if self.held != "shared" or self._pausing:
            return
        self._pausing = True
        try:
            if self._idle():  # else the watch asks again
                begin = self.waited_s
                self.leave()
                self._tell_pause(True)
                self.share()
                self.paused_s += self.waited_s - begin
                self._tell_pause(False)
        finally:
            self._pausing = False
