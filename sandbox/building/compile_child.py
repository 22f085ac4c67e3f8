"""One NVRTC compilation in a child process: a JSON request on stdin, files in the current folder, the verdict as exit code.

The child enters its jail after it has loaded NVRTC and before it reads the source. From then on it can open headers only,
not even the interpreter's own files. It imports the standard library and `jail/` only, so that it starts quickly.
"""

import ctypes
import json
import os
import sys
from pathlib import Path
from typing import Any

from sandbox.jail.entering import NEW_NETWORK, NOT_JAILED, Jail, enter, enter_namespace

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


def _jail(request: dict[str, Any]) -> None:
    """Load the rest of NVRTC, then enter the jail. Raises: OSError where a layer is refused."""
    jail = Jail.from_request(request)
    later = _loaded_later()
    for library in later:
        ctypes.CDLL(library)
    jail = Jail(write=jail.write, read=(*(jail.read or ()), *later), processes=False, layers=jail.layers)
    enter_namespace(jail, NEW_NETWORK)
    enter(jail, network=False, programs=False)


def _loaded_later() -> list[str]:
    """The libraries beside NVRTC that it loads at the first compilation."""
    with open("/proc/self/maps") as maps:
        paths = {line.split(maxsplit=5)[5].strip() for line in maps if "/libnvrtc" in line}
    return sorted(str(found) for path in paths for found in Path(path).parent.glob("libnvrtc-builtins*.so*"))


def main() -> int:
    request = json.load(sys.stdin)
    try:
        nvrtc_version()
    except (ImportError, RuntimeError, OSError) as exc:
        print(exc, file=sys.stderr)
        return MISSING
    try:
        if request["jail"] is not None:
            _jail(request["jail"])
    except OSError as exc:
        print(f"error: {exc}", file=sys.stderr)
        return NOT_JAILED
    try:
        return compile_source(request["source"], request["options"], request["headers"], Path.cwd())
    except OSError as exc:
        print(f"error: the output cannot be written: {os.strerror(exc.errno or 0)}", file=sys.stderr)
        return FAILED


if __name__ == "__main__":
    sys.exit(main())
