"""Child processes under limits, for everything that touches model-written code.

Covered: a wall-clock limit that ends the whole process group; the limits of `confined.py`; an environment made from an
allow-list; captured output of bounded size; cancelling from another thread.
Not covered: what `confined.py` does not cover; a child that leaves its process group is bound by its CPU limit only.
"""

import functools
import json
import os
import re
import selectors
import shutil
import signal
import subprocess
import sys
import sysconfig
import threading
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import IO

import cudal2_agent
from cudal2_agent.contract.errors import WorkerError
from cudal2_agent.sandbox.jail.entering import JAILED, Jail

# Everything that a child inherits. No tokens, keys or user settings: a name is added here only for a stated need.
ALLOWED_ENVIRONMENT = (
    "PATH",  # gcc and ptxas for nvcc, nvidia-smi
    "LD_LIBRARY_PATH",  # driver and toolkit libraries outside the system's folders
    "CUDA_HOME",  # toolkit and its headers, for cupy and cuda-bindings
    "CUDA_PATH",
    "CUDA_VISIBLE_DEVICES",  # which GPUs a worker may see
    "CUDA_DEVICE_ORDER",  # and their numbers
    "NVIDIA_VISIBLE_DEVICES",
    "LANG",
    "LC_ALL",
    "TZ",
)
# Not for compilers: a source must not find out whether there is a GPU.
DEVICE_ENVIRONMENT = ("CUDA_VISIBLE_DEVICES", "CUDA_DEVICE_ORDER", "NVIDIA_VISIBLE_DEVICES")
# Our own settings, of which some are keys, and what programs commonly name a secret.
_SECRET = re.compile(r"^CUDAL2_|^OPENAI_|API_?KEY|ACCESS_?KEY|TOKEN|SECRET|PASSW|CREDENTIAL", re.IGNORECASE)
_POLL_S = 0.05
_DRAIN_S = 1.0
_READ_BYTES = 1 << 16


@dataclass(frozen=True)
class Limits:
    """Limits of one child. `memory_bytes`: address space; None for a CUDA process, which maps far more than it uses.

    `output_bytes` bounds each captured stream: the beginning is kept, the rest is read and dropped. `die_with_parent`
    follows the thread that starts the child, so that thread must outlive it. `jail`: the files and system calls that are
    left to it; None leaves those of its user. `devices`: whether its environment names GPUs. `kernel_log`: whether the
    launcher opens the kernel's log for it.
    """

    wall_s: float
    cpu_s: int | None = None
    memory_bytes: int | None = None
    file_bytes: int | None = None
    output_bytes: int = 1 << 20
    network: bool = False
    die_with_parent: bool = True
    jail: Jail | None = None
    devices: bool = True
    kernel_log: bool = False


@dataclass(frozen=True)
class ChildExit:
    """How a child ended. `returncode` is negative for a signal; `ended_by` says what ended it."""

    returncode: int
    stdout: bytes
    stderr: bytes
    seconds: float
    ended_by: str  # "itself", "wall-clock" or "cancel"

    @property
    def timed_out(self) -> bool:
        """Whether the wall-clock limit or the CPU limit ended it."""
        return self.ended_by == "wall-clock" or self.returncode == -signal.SIGXCPU


def child_environment(scratch: Path, extra: Mapping[str, str] | None = None, *, devices: bool = True) -> dict[str, str]:
    """The environment of a child: the allow-list, a home and temporary folder in its scratch, and our module path."""
    names = [name for name in ALLOWED_ENVIRONMENT if devices or name not in DEVICE_ENVIRONMENT]
    environment = {name: os.environ[name] for name in names if name in os.environ}
    environment.setdefault("PATH", os.defpath)
    environment.update(
        HOME=str(scratch),
        LOGNAME="worker",  # a jail hides the list of users, which torch's compilers ask for a name
        TMPDIR=str(scratch),
        PYTHONPATH=os.pathsep.join(module_path()),
        PYTHONDONTWRITEBYTECODE="1",
        PYTHONNOUSERSITE="1",
    )
    return environment | dict(extra or {})


def launcher_environment() -> dict[str, str]:
    """The environment of a command that the user names, such as ssh or srun: their own, without what may be a secret.

    srun hands its environment on, and a container may; none of ours is for the machine at the other end.
    """
    return {name: text for name, text in os.environ.items() if not _SECRET.search(name)}


def module_path() -> list[str]:
    """The folder that holds our package, and the import path of this process.

    It lacks the standard library, because a child may run another Python.
    """
    standard = {Path(sysconfig.get_path(name)).resolve() for name in ("stdlib", "platstdlib")}
    standard |= {folder / "lib-dynload" for folder in standard}
    entries = [Path(cudal2_agent.__file__).resolve().parents[1], *(Path(entry).resolve() for entry in sys.path if entry)]
    return [str(entry) for entry in dict.fromkeys(entries) if entry.is_dir() and entry not in standard]


def confine(command: Sequence[str], limits: Limits) -> list[str]:
    """The command behind `confined.py`, ready for `subprocess` (never with a shell). Raises: WorkerError if not found."""
    program = shutil.which(command[0])
    if program is None:
        raise WorkerError(f"cannot start {command[0]!r}: no such program")
    request = {
        "cpu_s": limits.cpu_s,
        "memory_bytes": limits.memory_bytes,
        "file_bytes": limits.file_bytes,
        "network": limits.network,
        "parent": os.getpid() if limits.die_with_parent else None,
        "kernel_log": limits.kernel_log,
        "jail": limits.jail.as_request() if limits.jail else None,
    }
    launcher = Path(__file__).with_name("confined.py")
    return [sys.executable, "-I", "-S", str(launcher), json.dumps(request), program, *command[1:]]


def is_jailed() -> bool:
    """Whether this process was started in a jail that holds its files (`confined.py` leaves a mark)."""
    return JAILED in os.environ


def kill_group(process: subprocess.Popen[bytes]) -> None:
    """Kill a child's process group. Call it before the child is reaped: until then no other group can have its id."""
    try:
        os.killpg(process.pid, signal.SIGKILL)
    except (ProcessLookupError, PermissionError):
        return  # the group is gone; macOS answers EPERM for a group of zombies


def run(
    command: Sequence[str],
    *,
    scratch: Path,
    limits: Limits,
    stdin: bytes = b"",
    extra_environment: Mapping[str, str] | None = None,
    cancel: threading.Event | None = None,
) -> ChildExit:
    """Run a command in its scratch folder under limits and return how it ended.

    Raises: WorkerError where it cannot be started.
    """
    started = time.monotonic()
    # Input goes through a file: a child that never reads can't block the parent.
    with (scratch / ".stdin").open("w+b") as source:
        source.write(stdin)
        source.seek(0)
        process = _start(
            confine(command, limits),
            scratch,
            source,
            child_environment(scratch.resolve(), extra_environment, devices=limits.devices),
        )
    with process:
        try:
            ended_by, streams = _supervise(process, started + limits.wall_s, limits.output_bytes, cancel)
        finally:
            if process.returncode is None:
                kill_group(process)
    return ChildExit(
        returncode=process.returncode,
        stdout=streams[0],
        stderr=streams[1],
        seconds=time.monotonic() - started,
        ended_by=ended_by,
    )


def _start(command: list[str], scratch: Path, source: IO[bytes], environment: dict[str, str]) -> subprocess.Popen[bytes]:
    try:
        return subprocess.Popen(
            command,
            cwd=scratch,
            env=environment,
            stdin=source,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            start_new_session=True,
        )
    except OSError as exc:
        raise WorkerError(f"cannot start {command[0]!r}: {exc}") from exc


def _supervise(
    process: subprocess.Popen[bytes], deadline: float, output_bytes: int, cancel: threading.Event | None
) -> tuple[str, tuple[bytes, bytes]]:
    """Read both streams until the child ends, is cancelled or reaches its deadline; then end its whole group."""
    assert process.stdout is not None
    assert process.stderr is not None
    streams = {process.stdout.fileno(): bytearray(), process.stderr.fileno(): bytearray()}
    ended_by = "itself"
    with selectors.DefaultSelector() as selector:
        for descriptor in streams:
            os.set_blocking(descriptor, False)
            selector.register(descriptor, selectors.EVENT_READ)
        while not _has_ended(process):
            if time.monotonic() >= deadline:
                ended_by = "wall-clock"
                break
            if cancel is not None and cancel.is_set():
                ended_by = "cancel"
                break
            _read(selector, streams, output_bytes, _POLL_S)
        kill_group(process)
        drained_at = time.monotonic() + _DRAIN_S
        while selector.get_map() and time.monotonic() < drained_at:
            _read(selector, streams, output_bytes, _POLL_S)
    process.wait()
    stdout, stderr = streams.values()
    return ended_by, (bytes(stdout), bytes(stderr))


def _has_ended(process: subprocess.Popen[bytes]) -> bool:
    """Whether the child has exited, leaving it unreaped so that its process group keeps its id."""
    return os.waitid(os.P_PID, process.pid, os.WEXITED | os.WNOHANG | os.WNOWAIT) is not None


def _read(selector: selectors.BaseSelector, streams: dict[int, bytearray], most: int, wait_s: float) -> None:
    if not selector.get_map():
        time.sleep(wait_s / 10)  # both streams are closed; the end is near
        return
    for key, _ in selector.select(wait_s):
        block = os.read(key.fd, _READ_BYTES)
        if block:
            kept = streams[key.fd]
            kept += block[: max(0, most - len(kept))]
        else:
            selector.unregister(key.fd)


@functools.cache
def network_isolated() -> bool:
    """Whether children started with `network=False` see no network interface but their own loopback."""
    names = "import socket; print(*(name for _, name in socket.if_nameindex()))"
    command = confine([sys.executable, "-I", "-S", "-c", names], Limits(wall_s=10))
    done = subprocess.run(command, capture_output=True, timeout=10, check=False, env={"PATH": os.defpath})
    return done.returncode == 0 and set(done.stdout.decode().split()) <= {"lo"}
