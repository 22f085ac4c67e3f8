"""Quick builds for tests that are not about building.

The first compilation in a child takes 0.15 s of CPU more than the compiler needs, and nvdisasm 0.25 s for any cubin. The
child has its tests in `tests/sandbox/building`, reading machine code has its tests in `tests/sandbox/inspect`.
"""

import functools
import hashlib
import time
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import pytest

from cudal2_agent.sandbox.building.compile_child import compile_source
from cudal2_agent.sandbox.building.compile_servers import CompileServers
from cudal2_agent.sandbox.inspect import sass
from cudal2_agent.sandbox.inspect.sass import Sass
from cudal2_agent.sandbox.workers.process import ChildExit


def compile_in_this_process(patch: pytest.MonkeyPatch) -> None:
    """NVRTC compiles here instead of in a child; nvcc still runs in its own."""

    def run(_: CompileServers, request: Mapping[str, Any], *, scratch: Path, **__: Any) -> ChildExit:
        started = time.monotonic()
        verdict = compile_source(request["source"], request["options"], request["headers"], scratch)
        return ChildExit(verdict, b"", b"", time.monotonic() - started, "itself")

    patch.setattr(CompileServers, "run", run)


def leave_machine_code_unread(patch: pytest.MonkeyPatch) -> None:
    """Inspection reads the PTX only, as on a machine without nvdisasm."""
    patch.setattr(sass, "disassemble", lambda _: None)


def disassemble_once(patch: pytest.MonkeyPatch) -> None:
    """Equal cubins are disassembled once."""
    files: dict[str, Path] = {}
    disassemble = sass.disassemble

    @functools.cache
    def of(content: str) -> Sass | None:
        return disassemble(files.pop(content))

    def remembered(cubin: Path) -> Sass | None:
        content = hashlib.sha256(cubin.read_bytes()).hexdigest()
        files[content] = cubin
        return of(content)

    patch.setattr(sass, "disassemble", remembered)
