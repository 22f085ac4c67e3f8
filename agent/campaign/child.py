"""A process of a campaign. It ends when its job does, when it is told to, and when the process that started it is gone."""

import logging
import os
import signal
import socket
import threading
from collections.abc import Callable
from contextlib import suppress
from multiprocessing.connection import Connection
from types import FrameType

from agent.campaign.messages import Ended, News
from contract.errors import CompilerMissing, Cudal2Error, UsageError

INTERRUPTED = 130
Tell = Callable[[News], None]


def worker_name(pid: int) -> str:
    """The name under which a process of this machine holds items."""
    return f"{socket.gethostname()[:100]}:{pid}"


def run_child(pipe: "Connection[News, str]", job: Callable[[Tell], None]) -> None:
    """Run a job whose news go through the pipe. Whatever comes back through it, or its end, interrupts the job, once."""
    logging.basicConfig(level=logging.WARNING)
    signal.signal(signal.SIGINT, _interrupt_once)
    threading.Thread(target=_listen, args=(pipe,), daemon=True).start()
    tell = _teller(pipe)
    code = 0
    try:
        job(tell)
        tell(Ended())
    except KeyboardInterrupt:
        code = INTERRUPTED
    except Cudal2Error as exc:
        tell(Ended(reason=str(exc), hopeless=isinstance(exc, UsageError | CompilerMissing)))
        code = exc.exit_code
    os._exit(code)  # threads of libraries must not hold it up


def _teller(pipe: "Connection[News, str]") -> Tell:
    lock = threading.Lock()

    def tell(news: News) -> None:
        with lock, suppress(OSError):  # the reader is gone; `_listen` ends this process
            pipe.send(news)

    return tell


def _listen(pipe: "Connection[News, str]") -> None:
    with suppress(EOFError, OSError):
        pipe.recv()
    os.kill(os.getpid(), signal.SIGINT)


def _interrupt_once(_: int, __: FrameType | None) -> None:
    """The first interrupt ends the work; later ones must not disturb what is handed back."""
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    raise KeyboardInterrupt
