"""One NVRTC compilation, in a child process: a JSON request on stdin, files in the current folder, the verdict as exit code.

Imports nothing of this project, so that a compilation costs little more than the compiler.
"""

import json
import sys
from pathlib import Path
from typing import Any

COMPILED = 0
REFUSED = 3  # by the compiler; not 1, with which Python ends on an exception
MISSING = 4  # no NVRTC here
FAILED = 5  # NVRTC gave up for a reason of its own, such as memory
CUBIN = "kernel.cubin"
PTX = "kernel.ptx"
LOG = "kernel.log"


def nvrtc_version() -> str:
    """Version of the NVRTC that is loaded. Raises: ImportError, RuntimeError or OSError where there is none."""
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
    """One output of a program; text comes with terminating zeros."""
    _, count = _checked(size(program))
    buffer = bytes(bytearray(b" " * count))  # of its own: NVRTC writes into it, and Python shares equal literals
    _checked(get(program, buffer))
    return buffer.rstrip(b"\0") if terminated else buffer


def main() -> int:
    request = json.load(sys.stdin)
    try:
        nvrtc_version()
    except (ImportError, RuntimeError, OSError) as exc:
        print(exc, file=sys.stderr)
        return MISSING
    return compile_source(request["source"], request["options"], request["headers"], Path.cwd())


if __name__ == "__main__":
    sys.exit(main())
