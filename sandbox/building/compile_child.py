"""NVRTC compilations in child processes: a server loads NVRTC and forks a child for each, which enters its jail.

The child writes files into the scratch folder, and its verdict is its exit code. Loading NVRTC takes longer than some
compilations.

Covered: from its jail a compilation opens headers only, not even the interpreter's own files; and what `forking.py` covers.
"""

import ctypes
import os
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from cudal2_agent.sandbox.jail.entering import NEW_NETWORK, NOT_JAILED, Jail, enter, enter_namespace
from cudal2_agent.sandbox.workers import forking

COMPILED = 0
REFUSED = 3  # by the compiler; not 1, with which Python ends on an exception
MISSING = 4  # no NVRTC here
FAILED = 5  # NVRTC failed for a reason such as lack of memory, or its output could not be written
CUBIN = "kernel.cubin"
PTX = "kernel.ptx"
LOG = "kernel.log"


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
    """Load NVRTC, then compile one request after another until stdin ends."""
    try:
        nvrtc_version()
        libraries = _loaded_later()
        for library in libraries:
            ctypes.CDLL(library)
    except (ImportError, RuntimeError, OSError) as exc:
        print(exc, file=sys.stderr)
        return MISSING
    return forking.serve(lambda request: _compile(request, libraries))


def _compile(request: dict[str, Any], libraries: Sequence[str]) -> int:
    """The verdict on a request, under its limits and in its jail."""
    forking.set_limits(request)
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
