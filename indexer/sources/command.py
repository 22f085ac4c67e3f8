"""Runs pip and git under a time limit, without a terminal, and ends them with all their child processes."""

import os
import signal
import subprocess
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path

from cudal2_agent.contract.errors import SourceError


@dataclass(frozen=True)
class CommandResult:
    """The exit status and output of a command."""

    returncode: int
    stdout: str
    stderr: str


RunCommand = Callable[[Sequence[str], Path, float], CommandResult]


def run_command(arguments: Sequence[str], folder: Path, timeout_s: float) -> CommandResult:
    """Run a command in a folder, with the user's environment and in a new session.

    Raises: SourceError if it cannot be started or exceeds the time limit.
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
            start_new_session=True,  # no terminal for prompts, and one process group to end
        )
    except OSError as exc:
        raise SourceError(f"{arguments[0]} cannot be started: {exc.strerror}") from exc
    try:
        stdout, stderr = process.communicate(timeout=timeout_s)
    except subprocess.TimeoutExpired as exc:
        raise SourceError(f"{_title(arguments)} took more than {timeout_s:g} s and was ended; check the network") from exc
    finally:
        if process.returncode is None:  # the limit, or Ctrl-C
            os.killpg(process.pid, signal.SIGKILL)
            process.wait()
    return CommandResult(process.returncode, stdout, stderr)


def _title(arguments: Sequence[str]) -> str:
    return "pip" if "pip" in arguments else "git"
