"""NVRTC compilations in child processes: a server loads NVRTC and forks a child for each, which enters its jail.

A scratch folder on a line of stdin asks for the compilation of the request in it; the answer is how its child ended, on a line
of stdout. The child writes files into the scratch folder, and its verdict is its exit code. Loading NVRTC takes longer than
some compilations.

Covered: a compilation learns nothing of earlier ones, because the server itself reads no request and compiles nothing; it can
neither answer for itself nor hear the next order. From its jail it opens headers only, not even the interpreter's own files.
Not covered: children of one server have their libraries at the same addresses.
"""

import contextlib
import ctypes
import gc
import json
import os
import resource
import select
import signal
import sys
import traceback
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from cudal2_agent.sandbox.jail.entering import NEW_NETWORK, NOT_JAILED, Jail, enter, enter_namespace
from cudal2_agent.sandbox.workers.confined import die_with, limit

COMPILED = 0
REFUSED = 3  # by the compiler; not 1, with which Python ends on an exception
MISSING = 4  # no NVRTC here
FAILED = 5  # NVRTC failed for a reason such as lack of memory, or its output could not be written
CUBIN = "kernel.cubin"
PTX = "kernel.ptx"
LOG = "kernel.log"
REQUEST = "request.json"
SAID_BYTES = 1 << 20  # kept of what a child prints
_POLL_S, _ENDING_S = 0.05, 0.002  # between two looks at a child, and at one that has closed its output
_READ_BYTES = 1 << 16


def nvrtc_version() -> str:
    """Version of the NVRTC that this process loads. Raises: ImportError, RuntimeError or OSError where there is none."""
    from cuda.bindings import nvrtc

    _, major, minor = _checked(nvrtc.nvrtcVersion())
    return f"{major}.{minor}"


def compile_source(source: str, options: list[str], headers: dict[str, str], out: Path) -> int:
    """Compile into `out`, log included, and return the verdict."""
    from cuda.bindings import nvrtc

    contents, names = [text.encode() for text in headers.values()], [name.encode() for name in headers]
    _, program = _checked(nvrtc.nvrtcCreateProgram(source.encode(), b"kernel.cu", len(names), contents, names))
    (status,) = nvrtc.nvrtcCompileProgram(program, len(options), [option.encode() for option in options])
    log = _read(program, nvrtc.nvrtcGetProgramLogSize, nvrtc.nvrtcGetProgramLog).decode(errors="replace")
    (out / LOG).write_text(log)
    if status == nvrtc.nvrtcResult.NVRTC_SUCCESS:
        (out / PTX).write_bytes(_read(program, nvrtc.nvrtcGetPTXSize, nvrtc.nvrtcGetPTX))
        (out / CUBIN).write_bytes(_read(program, nvrtc.nvrtcGetCUBINSize, nvrtc.nvrtcGetCUBIN, terminated=False))
        return COMPILED
    if status in (nvrtc.nvrtcResult.NVRTC_ERROR_COMPILATION, nvrtc.nvrtcResult.NVRTC_ERROR_INVALID_OPTION):
        return REFUSED
    print(f"error: NVRTC ended with {status.name}", file=sys.stderr)
    return FAILED


def _checked(result: tuple[Any, ...]) -> tuple[Any, ...]:
    if int(result[0]):
        raise RuntimeError(f"NVRTC answered {result[0].name}")
    return result


def _read(program: Any, size: Any, get: Any, *, terminated: bool = True) -> bytes:
    """One output of a program. Text comes with terminating zeros."""
    _, count = _checked(size(program))
    buffer = bytes(bytearray(b" " * count))  # not shared: NVRTC writes into it, and Python shares equal literals
    _checked(get(program, buffer))
    return buffer.rstrip(b"\0") if terminated else buffer


def serve() -> int:
    """Load NVRTC, then compile one request after another until stdin ends. It also ends a compilation that is going on."""
    try:
        nvrtc_version()
        libraries = _loaded_later()
        for library in libraries:
            ctypes.CDLL(library)
    except (ImportError, RuntimeError, OSError) as exc:
        print(exc, file=sys.stderr)
        return MISSING
    gc.freeze()  # a collection in a child would copy the pages of all that is loaded
    for line in sys.stdin.buffer:
        ended = _in_child(os.fsdecode(line.rstrip(b"\n")), libraries)
        if ended is None:
            break
        print(json.dumps({"returncode": ended[0], "said": ended[1].decode(errors="replace")}), flush=True)
    return 0


def _in_child(scratch: str, libraries: Sequence[str]) -> tuple[int, bytes] | None:
    """How a compilation ended, and what it printed; None where stdin ended first."""
    server, (output, printed) = os.getpid(), os.pipe()
    child = os.fork()
    if not child:
        _become_child(server, scratch, printed, libraries)
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


def _become_child(server: int, scratch: str, printed: int, libraries: Sequence[str]) -> None:
    """Compile the request in a scratch folder, and end. Nothing that the server has open stays open."""
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
        code = _compile(json.loads(Path(REQUEST).read_bytes()), libraries)
    except BaseException:  # noqa: BLE001 (a child must not go on as a second server)
        traceback.print_exc()
    finally:
        sys.stdout.flush()
        sys.stderr.flush()
        os._exit(code)


def _compile(request: dict[str, Any], libraries: Sequence[str]) -> int:
    """The verdict on a request, under its limits and in its jail."""
    limit(resource.RLIMIT_CPU, request["cpu_s"], grace=1)  # the soft limit's SIGXCPU says why it died
    limit(resource.RLIMIT_AS, request["memory_bytes"])
    limit(resource.RLIMIT_FSIZE, request["file_bytes"])
    try:
        _enter(Jail.from_request(request["jail"]), libraries)
    except OSError as exc:
        print(f"error: {exc}", file=sys.stderr)
        return NOT_JAILED
    try:
        return compile_source(request["source"], request["options"], request["headers"], Path.cwd())
    except OSError as exc:
        print(f"error: the output cannot be written: {os.strerror(exc.errno or 0)}", file=sys.stderr)
        return FAILED


def _enter(jail: Jail, libraries: Sequence[str]) -> None:
    """Raises: OSError where a layer is refused."""
    jail = Jail(write=jail.write, read=(*(jail.read or ()), *libraries), processes=False, layers=jail.layers)
    enter_namespace(jail, NEW_NETWORK)
    enter(jail, network=False, programs=False)


def _loaded_later() -> list[str]:
    """The libraries beside NVRTC that it loads at the first compilation."""
    with open("/proc/self/maps") as maps:
        paths = {line.split(maxsplit=5)[5].strip() for line in maps if "/libnvrtc" in line}
    return sorted(str(found) for path in paths for found in Path(path).parent.glob("libnvrtc-builtins*.so*"))


if __name__ == "__main__":
    sys.exit(serve())
