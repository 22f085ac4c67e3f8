"""Quick builds for tests that are not about building.

NVRTC takes 0.1 to 0.5 s of CPU for a kernel, the first compilation in a child 0.15 s more, and nvdisasm 0.35 s for any
cubin. What they leave is kept in a folder that all workers of a run share (`tests/conftest.py:kept_builds`), so that each
distinct kernel is compiled and disassembled once. An entry belongs to all that the compiler read, and to the product's files
that compile and read. The compiler, its child, its cache and its jail have their tests in `tests/sandbox/building`, reading
machine code has its tests in `tests/sandbox/inspect`: those that are about it compile and read anew.
"""

import functools
import os
import shutil
import tempfile
import threading
import time
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import pytest
from pydantic import TypeAdapter

from cudal2_agent.contract.base import digest
from cudal2_agent.sandbox.building import compile_child
from cudal2_agent.sandbox.building.cache import sha256_of
from cudal2_agent.sandbox.building.compile_child import COMPILED, REFUSED, compile_source
from cudal2_agent.sandbox.building.headers import find_headers
from cudal2_agent.sandbox.building.toolchain import nvrtc_version
from cudal2_agent.sandbox.inspect import sass
from cudal2_agent.sandbox.inspect.sass import Sass
from cudal2_agent.sandbox.workers.fork_servers import ForkServers
from cudal2_agent.sandbox.workers.process import ChildExit

_VERDICT = "verdict"
_PRODUCTS = (compile_child.LOG, compile_child.PTX, compile_child.CUBIN)
_SASS: TypeAdapter[Sass | None] = TypeAdapter(Sass | None)
Compile = Callable[..., ChildExit]


def compile_in_this_process(patch: pytest.MonkeyPatch, kept: Path) -> None:
    """NVRTC compiles here instead of in a child, each kernel once; nvcc still runs in its own."""

    def run(_: ForkServers, request: Mapping[str, Any], *, scratch: Path, **__: Any) -> ChildExit:
        started = time.monotonic()
        verdict = compile_source(request["source"], request["options"], request["headers"], scratch)
        return ChildExit(verdict, b"", b"", time.monotonic() - started, "itself")

    patch.setattr(ForkServers, "run", _once(run, kept))


def compile_once(patch: pytest.MonkeyPatch, kept: Path) -> None:
    """NVRTC compiles each kernel once, in the product's child."""
    patch.setattr(ForkServers, "run", _once(ForkServers.run, kept))


def leave_machine_code_unread(patch: pytest.MonkeyPatch) -> None:
    """Inspection reads the PTX only, as on a machine without nvdisasm."""
    patch.setattr(sass, "disassemble", lambda _: None)


def disassemble_once(patch: pytest.MonkeyPatch, kept: Path) -> None:
    """Equal cubins are disassembled once."""
    disassemble = sass.disassemble

    def remembered(cubin: Path) -> Sass | None:
        file = kept / digest(["sass", sha256_of(cubin), sha256_of(Path(sass.__file__)), sass.disassembler()])
        if not file.exists():
            _write_whole(file, _SASS.dump_json(disassemble(cubin)))
        return _SASS.validate_json(file.read_bytes())

    patch.setattr(sass, "disassemble", remembered)


def _once(compile_anew: Compile, kept: Path) -> Compile:
    """The same compilation, from the folder of what was compiled where that holds it."""

    def run(
        servers: ForkServers,
        request: Mapping[str, Any],
        *,
        scratch: Path,
        cancel: threading.Event | None = None,
        **limits: Any,
    ) -> ChildExit:
        if "source" not in request:  # of another child than the compiler
            return compile_anew(servers, request, scratch=scratch, cancel=cancel, **limits)
        started, entry = time.monotonic(), kept / _key(request)
        if entry.is_dir() and not (cancel and cancel.is_set()):
            for name in os.listdir(entry):
                shutil.copyfile(entry / name, scratch / name)
            return ChildExit(int((entry / _VERDICT).read_text()), b"", b"", time.monotonic() - started, "itself")
        ended = compile_anew(servers, request, scratch=scratch, cancel=cancel, **limits)
        if ended.ended_by == "itself" and ended.returncode in (COMPILED, REFUSED) and not ended.stdout + ended.stderr:
            _keep(entry, scratch, ended.returncode)
        return ended

    return run


def _key(request: Mapping[str, Any]) -> str:
    compiler = [nvrtc_version(), _headers(), sha256_of(Path(compile_child.__file__))]
    return digest(["compiled", request["source"], request["options"], request["headers"], *compiler])


@functools.cache
def _headers() -> str:
    return find_headers().fingerprint


def _keep(entry: Path, scratch: Path, verdict: int) -> None:
    """A folder is renamed whole; where another worker was faster, its folder stays."""
    building = Path(tempfile.mkdtemp(dir=entry.parent))
    for name in _PRODUCTS:
        if (scratch / name).exists():
            shutil.copyfile(scratch / name, building / name)
    (building / _VERDICT).write_text(str(verdict))
    try:
        building.rename(entry)
    except OSError:
        shutil.rmtree(building)


def _write_whole(file: Path, content: bytes) -> None:
    with tempfile.NamedTemporaryFile(dir=file.parent, delete=False) as aside:
        aside.write(content)
    os.replace(aside.name, file)
