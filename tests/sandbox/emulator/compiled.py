"""PTX for the emulator's tests: the compiler writes no machine code, and processes share a cache.

A compilation in the sandbox's jailed child costs three times as much, and the emulator uses the PTX alone. That child, its
limits and its cache have their own tests in `tests/sandbox/building`.
"""

import os
import subprocess
import tempfile
from pathlib import Path

from cudal2_agent.contract.base import digest
from cudal2_agent.contract.records.candidate import Candidate
from cudal2_agent.contract.records.task import Arch
from cudal2_agent.sandbox.building.compile_child import COMPILED, LOG, PTX, compile_source, nvrtc_version
from cudal2_agent.sandbox.building.headers import NVRTC_HEADERS, find_headers, find_own_headers
from cudal2_agent.sandbox.building.toolchain import find_nvcc, nvcc_version, toolkit_folder

_FLAGS = ("-std=c++17", "-DNDEBUG", "-lineinfo")


class PtxCompiler:
    """Compiles candidates to PTX, each once per folder: NVRTC in this process, nvcc where a candidate asks for it."""

    def __init__(self, folder: Path) -> None:
        folder.mkdir(parents=True, exist_ok=True)
        self._folder = folder

    def compile(self, candidate: Candidate, arch: Arch) -> str:
        """The PTX of a candidate that must compile."""
        nvrtc = candidate.compiler == "nvrtc"
        headers = find_headers() if nvrtc else find_own_headers(toolkit_folder(find_nvcc(None)))
        compiler = f"nvrtc {nvrtc_version()}" if nvrtc else nvcc_version(find_nvcc(None))
        options = [f"--gpu-architecture={arch.replace('sm_', 'compute_')}", *_FLAGS, *candidate.flags]
        file = self._folder / digest([candidate.source, options, headers.fingerprint, compiler])
        if not file.exists():
            with tempfile.TemporaryDirectory(dir=self._folder) as scratch:
                options += [f"--include-path={root}" for root in headers.roots]
                (_nvrtc if nvrtc else _nvcc)(candidate.source, options, Path(scratch))
                os.replace(Path(scratch) / PTX, file)
        return file.read_text(encoding="utf-8")


def _nvrtc(source: str, options: list[str], scratch: Path) -> None:
    verdict = compile_source(source, options, NVRTC_HEADERS, scratch)
    assert verdict == COMPILED, (scratch / LOG).read_text(encoding="utf-8")[:2000]


def _nvcc(source: str, options: list[str], scratch: Path) -> None:
    (scratch / "kernel.cu").write_text(source, encoding="utf-8")
    command = [find_nvcc(None), "-ptx", *options, "-o", PTX, "kernel.cu"]
    ended = subprocess.run(command, cwd=scratch, capture_output=True, text=True, check=False)
    assert ended.returncode == 0, ended.stderr[:2000]
