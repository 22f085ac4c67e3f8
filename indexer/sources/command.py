"""Runs pip and git: under a time limit, without a terminal to ask on, ended with everything they started."""

import os
import signal
import subprocess
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path

from contract.errors import SourceError


@dataclass(frozen=True)
class Finished:
    """How a command ended."""

    returncode: int
    stdout: str
    stderr: str


Run = Callable[[Sequence[str], Path, float], Finished]


def run_command(arguments: Sequence[str], folder: Path, timeout_s: float) -> Finished:
    """Run a command in a folder, with the environment of the user and a session of its own.

    Raises: SourceError where it cannot be started or takes longer than the limit.
    """
    try:
        process = subprocess.Popen(
            arguments,
            cwd=folder,
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
            encoding="utf-8",
            errors="replace",
            start_new_session=True,  # no terminal, so no prompt; and one group to end
        )
    except OSError as exc:
        raise SourceError(f"{arguments[0]} cannot be started: {exc.strerror}") from exc
    try:
        stdout, stderr = process.communicate(timeout=timeout_s)
    except subprocess.TimeoutExpired as exc:
        raise SourceError(f"{_title(arguments)} took more than {timeout_s:g} s and was ended; look at the network") from exc
    finally:
        if process.returncode is None:  # the limit, or Ctrl-C
            os.killpg(process.pid, signal.SIGKILL)
            process.wait()
    return Finished(process.returncode, stdout, stderr)


def _title(arguments: Sequence[str]) -> str:
    return "pip" if "pip" in arguments else "git"
