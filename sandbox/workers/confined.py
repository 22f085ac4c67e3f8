"""Starts one command under limits: `python -I -S confined.py '{...}' command arguments…`. Standard library only.

A fresh single-threaded process sets the limits and then becomes the command. A fork hook in a parent with threads may
deadlock, and a process with threads cannot enter a user namespace.

Covered: CPU time, address space, file size, open files, core dumps, death with the parent, the network (best effort); where
a jail is given, files and system calls (`jail/`).
Not covered: the number of processes, which Linux counts for the whole user, unless the jail forbids new ones.
"""

import contextlib
import ctypes
import json
import os
import resource
import signal
import sys

sys.path.append(os.path.abspath(os.path.join(os.path.dirname(__file__), "..", "..", "..")))  # last: it hides no standard module

from cudal2_agent.sandbox.jail.entering import (
    JAILED,
    KERNEL_LOG,
    KERNEL_LOG_FD,
    NEW_NETWORK,
    NOT_JAILED,
    Jail,
    enter,
    enter_namespace,
)

_CLONE_NEWUSER = 0x10000000
_PR_SET_PDEATHSIG = 1
_OPEN_FILES = 1024


def limit(kind: int, value: int | None, *, grace: int = 0) -> None:
    """Set a limit. `grace`: distance of the hard limit from the soft one, which only sends a signal."""
    if value is not None:
        _, hard = resource.getrlimit(kind)
        most = value + grace if hard == resource.RLIM_INFINITY else min(value + grace, hard)
        resource.setrlimit(kind, (min(value, most), most))


def die_with(parent: int) -> None:
    """Let this process be killed once its parent, or the thread of it that started this process, has ended."""
    libc = ctypes.CDLL(None, use_errno=True)
    libc.prctl(_PR_SET_PDEATHSIG, signal.SIGKILL)
    if os.getppid() != parent:  # it died before the request was made
        os.kill(os.getpid(), signal.SIGKILL)


def _isolate(libc: ctypes.CDLL, jail: Jail | None, *, network: bool) -> None:
    """Enter the namespaces. Raises: OSError where the jail's is refused."""
    if not (jail and enter_namespace(jail, 0 if network else NEW_NETWORK)) and not network:
        libc.unshare(_CLONE_NEWUSER | NEW_NETWORK)  # refused on some systems; process.network_isolated() tells


def _open_kernel_log() -> None:
    """Leave the command the kernel's log as `KERNEL_LOG_FD`, or nothing where it may not be read."""
    with contextlib.suppress(OSError):
        os.dup2(os.open(KERNEL_LOG, os.O_RDONLY | os.O_NONBLOCK), KERNEL_LOG_FD)


def main(request: str, command: list[str]) -> None:
    """Set the limits of a JSON request on this process, then replace it by the command."""
    limits = json.loads(request)
    jail = Jail.from_request(limits["jail"]) if limits["jail"] else None
    network = bool(limits["network"])
    if limits["kernel_log"]:
        _open_kernel_log()
    try:
        if sys.platform == "linux":
            libc = ctypes.CDLL(None, use_errno=True)
            _isolate(libc, jail, network=network)
            if limits["parent"] is not None:
                die_with(limits["parent"])
        if jail:
            enter(jail, network=network)
            if jail.layers.landlock or jail.layers.mounts:
                os.putenv(JAILED, "1")
    except OSError as exc:
        print(f"this process cannot be jailed: {exc}", file=sys.stderr)
        sys.exit(NOT_JAILED)
    limit(resource.RLIMIT_CORE, 0)
    limit(resource.RLIMIT_NOFILE, _OPEN_FILES)
    limit(resource.RLIMIT_CPU, limits["cpu_s"], grace=1)  # the soft limit's SIGXCPU says why it died
    limit(resource.RLIMIT_AS, limits["memory_bytes"])
    limit(resource.RLIMIT_FSIZE, limits["file_bytes"])
    os.execv(command[0], command)


if __name__ == "__main__":
    main(sys.argv[1], sys.argv[2:])
