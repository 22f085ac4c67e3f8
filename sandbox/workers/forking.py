"""A server that forks a child for each request: what takes long to load is loaded once, and no request meets another.

A scratch folder on a line of stdin asks for the work of the request in it; the answer is how its child ended, on a line of
stdout. The child leaves its results as files in the scratch folder.

Covered: a child learns nothing of earlier ones, because the server itself reads no request; it can neither answer for itself
nor hear the next order.
Not covered: children of one server have their libraries at the same addresses.
"""

import contextlib
import gc
import json
import os
import resource
import select
import signal
import sys
import traceback
from collections.abc import Callable
from pathlib import Path
from typing import Any

from cudal2_agent.sandbox.workers.confined import die_with, limit

REQUEST = "request.json"
SAID_BYTES = 1 << 20  # kept of what a child prints
_POLL_S, _ENDING_S = 0.05, 0.002  # between two looks at a child, and at one that has closed its output
_READ_BYTES = 1 << 16

Work = Callable[[dict[str, Any]], int]  # from a request to the child's exit code


def serve(work: Work) -> int:
    """Answer one request after another until stdin ends, which also ends the one that is going on."""
    gc.freeze()  # a collection in a child would copy the pages of all that is loaded
    for line in sys.stdin.buffer:
        ended = _in_child(os.fsdecode(line.rstrip(b"\n")), work)
        if ended is None:
            break
        print(json.dumps({"returncode": ended[0], "said": ended[1].decode(errors="replace")}), flush=True)
    return 0


def set_limits(request: dict[str, Any]) -> None:
    """Set the limits of a request on this process."""
    limit(resource.RLIMIT_CPU, request["cpu_s"], grace=1)  # the soft limit's SIGXCPU says why it died
    limit(resource.RLIMIT_AS, request["memory_bytes"])
    limit(resource.RLIMIT_FSIZE, request["file_bytes"])


def _in_child(scratch: str, work: Work) -> tuple[int, bytes] | None:
    """How the child of a request ended, and what it printed; None where stdin ended first."""
    server, (output, printed) = os.getpid(), os.pipe()
    child = os.fork()
    if not child:
        _become_child(server, scratch, printed, work)
    os.close(printed)
    os.set_blocking(output, False)
    with contextlib.suppress(OSError):  # the child does the same; whichever is first
        os.setpgid(child, child)
    watched, said = [0, output], bytearray()
    while not _has_ended(child):
        ready, _, _ = select.select(watched, [], [], _POLL_S if output in watched else _ENDING_S)
        if 0 in ready:
            break
        if output in ready and not _took(output, said):
            watched.remove(output)
    stopped = not _has_ended(child)
    with contextlib.suppress(ProcessLookupError, PermissionError):
        os.killpg(child, signal.SIGKILL)  # before it is reaped: until then no other group can have its id
    _, status = os.waitpid(child, 0)
    with contextlib.suppress(BlockingIOError):  # a process that left the group may still hold it open
        while not stopped and _took(output, said):
            pass
    os.close(output)
    return None if stopped else (os.waitstatus_to_exitcode(status), bytes(said))


def _took(output: int, said: bytearray) -> bool:
    """Read a block, of which as much is kept as there is room for. False at the end of the output."""
    block = os.read(output, _READ_BYTES)
    said += block[: SAID_BYTES - len(said)]
    return bool(block)


def _has_ended(child: int) -> bool:
    return os.waitid(os.P_PID, child, os.WEXITED | os.WNOHANG | os.WNOWAIT) is not None


def _become_child(server: int, scratch: str, printed: int, work: Work) -> None:
    """Work on the request in a scratch folder, and end. Nothing that the server has open stays open."""
    code = 1
    try:
        with contextlib.suppress(OSError):
            os.setpgid(0, 0)
        if sys.platform == "linux":
            die_with(server)
        os.dup2(os.open(os.devnull, os.O_RDONLY), 0)
        os.dup2(printed, 1)
        os.dup2(printed, 2)
        os.closerange(3, resource.getrlimit(resource.RLIMIT_NOFILE)[0])
        os.chdir(scratch)
        os.environ.update(HOME=scratch, TMPDIR=scratch)
        code = work(json.loads(Path(REQUEST).read_bytes()))
    except BaseException:  # noqa: BLE001 (a child must not go on as a second server)
        traceback.print_exc()
    finally:
        sys.stdout.flush()
        sys.stderr.flush()
        os._exit(code)
