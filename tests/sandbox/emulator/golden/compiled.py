"""Families compiled with NVRTC."""

import tempfile
from dataclasses import dataclass
from pathlib import Path

from cudal2_agent.sandbox.building.compile_child import COMPILED, CUBIN, LOG, PTX, compile_source
from cudal2_agent.sandbox.building.headers import NVRTC_HEADERS, find_headers
from tests.sandbox.emulator.golden.case import Family
from tests.sandbox.emulator.golden.sources import HEADER, source

_OPTIONS = ("-std=c++17", "-DNDEBUG")


@dataclass(frozen=True)
class Compiled:
    cubin: bytes
    ptx: str
    log: str


def compile_family(family: Family, arch: str = "sm_90a") -> Compiled:
    """Compile a family's source; for `compute_90a` to PTX only, which is faster.

    Raises: RuntimeError with the compiler's words.
    """
    options = [f"--gpu-architecture={arch}", *_OPTIONS, *(f"--include-path={root}" for root in find_headers().roots)]
    with tempfile.TemporaryDirectory() as scratch:
        folder = Path(scratch)
        verdict = compile_source(family.source, options, {**NVRTC_HEADERS, HEADER: source(HEADER)}, folder)
        log = (folder / LOG).read_text(encoding="utf-8")
        if verdict != COMPILED:
            raise RuntimeError(f"{family.name} does not compile:\n{log[:2000]}")
        return Compiled((folder / CUBIN).read_bytes(), (folder / PTX).read_text(encoding="utf-8"), log)
