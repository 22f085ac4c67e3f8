"""The compiler: NVRTC in a child process by default, nvcc where a candidate asks for it or is a host candidate.

Covered: wall-clock, CPU, memory and file-size limits of every compilation; a content-addressed cache (compile errors are
cached, time-outs, deaths of the compiler and lack of memory never); a compiler that this machine lacks.
Not covered: what the compiler reads; `check.py` keeps sources from naming files that are not allowed headers.
"""

import functools
import json
import math
import re
import shutil
import signal
import sys
import threading
from dataclasses import dataclass
from pathlib import Path

from contract.base import Record, digest
from contract.candidate import AnyCandidate, Candidate, HostCandidate
from contract.errors import CompilerMissing, MachineError
from contract.evaluation import CompileFailed, TimedOut
from contract.options import CompileOptions
from contract.task import Arch
from sandbox import compile_child
from sandbox.cache import FORMAT, CompileCache
from sandbox.compile_child import CUBIN, LOG, PTX
from sandbox.headers import NVRTC_HEADERS, Headers, find_headers, find_own_headers, folder_fingerprint
from sandbox.process import Finished, Limits, run
from sandbox.toolchain import NVRTC_REMEDY, find_nvcc, nvcc_version, nvrtc_version

SHARED = "kernel.so"
SOURCE = "kernel.cu"
_STANDARD = "-std=c++17"
_LINES = "-lineinfo"  # for the emulator's reports and for profiles; the machine code is the same without it
_LOG_HEAD_CHARS, _LOG_TAIL_CHARS, _MESSAGE_CHARS = 48_000, 16_000, 300
_ERROR_LINE = re.compile(r"^(?!.*\bwarning\b).*\b(?:fatal|error)(?: #[\w-]+)?\s*:", re.IGNORECASE)
_TOOL_DIED = re.compile(r"died due to signal|bad_alloc|out of memory|no space left|file size limit", re.IGNORECASE)


class Compiled(Record):
    """A compilation that succeeded, in the cache. `cubin_path`: the device code; also of a host candidate, for inspection.

    `seconds`: what the compiler took when it ran, which for a `cached` one was earlier.
    """

    artifact_path: str
    cubin_path: str
    ptx_path: str
    log: str
    seconds: float
    cached: bool


class Cancelled(Exception):
    """The caller gave the compilation up; never seen outside the sandbox."""


@dataclass(frozen=True)
class _Job:
    """One command that compiles, and the key its products are kept under."""

    key: str
    command: tuple[str, ...]
    stdin: bytes
    headers: Headers
    artifact: str


class Compiler:
    """Compiles candidates, each once. Thread-safe."""

    def __init__(self, options: CompileOptions) -> None:
        self._options = options
        self._cache = CompileCache(Path(options.cache_dir))
        self._cache.sweep()

    def compile(
        self, candidate: AnyCandidate, arch: Arch, cancel: threading.Event | None = None
    ) -> Compiled | CompileFailed | TimedOut:
        """Compile for an architecture, or find it in the cache.

        Raises: CompilerMissing, MachineError, WorkerError; Cancelled once `cancel` is set.
        """
        nvrtc = isinstance(candidate, Candidate) and candidate.compiler == "nvrtc"
        job = self._nvrtc_job(candidate, arch) if nvrtc else self._nvcc_job(candidate, arch)
        outcome = self._load(job.key, job.artifact, cached=True)
        if outcome is not None:
            return outcome
        scratch = self._cache.scratch()
        try:
            return self._compile(job, candidate.source, scratch, cancel)
        finally:
            shutil.rmtree(scratch, ignore_errors=True)

    def _compile(
        self, job: _Job, source: str, scratch: Path, cancel: threading.Event | None
    ) -> Compiled | CompileFailed | TimedOut:
        (scratch / SOURCE).write_text(source, encoding="utf-8", newline="")
        ended = run(job.command, scratch=scratch, limits=_limits(self._options), stdin=job.stdin, cancel=cancel)
        if ended.ended_by == "cancel":
            raise Cancelled
        if ended.timed_out:
            return TimedOut(stage="compile", limit_s=self._options.timeout_s)
        if ended.returncode == compile_child.MISSING and job.stdin:
            raise CompilerMissing(f"NVRTC cannot be loaded; {NVRTC_REMEDY}", log=ended.stderr.decode(errors="replace"))
        log = _log(scratch, ended, job.headers)
        if ended.returncode and not _refused(job, ended, log):
            return CompileFailed(message=_death(ended, log, self._options), log=_shortened(log))
        files = {LOG: log.encode(), SOURCE: source.encode()}
        if not ended.returncode:
            files |= _products(scratch, job.artifact)
        self._cache.save(job.key, files, compiled=not ended.returncode, seconds=ended.seconds)
        outcome = self._load(job.key, job.artifact, cached=False)
        if outcome is None:
            raise MachineError(f"{self._options.cache_dir}: an entry of the compile cache vanished as it was written")
        return outcome

    def _load(self, key: str, artifact: str, *, cached: bool) -> Compiled | CompileFailed | None:
        entry = self._cache.load(key)
        if entry is None:
            return None
        folder = self._cache.path(key)
        log = (folder / LOG).read_text(encoding="utf-8")
        if not entry.compiled:
            return CompileFailed(message=first_error(log), log=_shortened(log))
        return Compiled(
            artifact_path=str(folder / artifact),
            cubin_path=str(folder / CUBIN),
            ptx_path=str(folder / PTX),
            log=log,
            seconds=entry.seconds,
            cached=cached,
        )

    def _nvrtc_job(self, candidate: AnyCandidate, arch: Arch) -> _Job:
        headers = self._headers
        options = [f"--gpu-architecture={arch}", "--ptxas-options=-v", "-DNDEBUG", *_flags(candidate)]
        include = [f"--include-path={root}" for root in headers.roots]
        request = {"source": candidate.source, "options": options + include, "headers": NVRTC_HEADERS}
        return _Job(
            key=_key(candidate, options, headers, f"nvrtc {nvrtc_version()}"),
            command=(sys.executable, "-P", "-s", "-m", "sandbox.compile_child"),
            stdin=json.dumps(request).encode(),
            headers=headers,
            artifact=CUBIN,
        )

    def _nvcc_job(self, candidate: AnyCandidate, arch: Arch) -> _Job:
        nvcc, headers = find_nvcc(self._options.nvcc), self._own_headers
        host = isinstance(candidate, HostCandidate)
        folders = candidate.include_dirs if isinstance(candidate, HostCandidate) else ()
        artifact = SHARED if host else CUBIN
        code = f"arch=compute_{arch.removeprefix('sm_')},code={arch}"
        product = ("-shared", "-Xcompiler=-fPIC") if host else ("-cubin",)
        options = ["-gencode", code, "-Xptxas=-v", "-DNDEBUG", "-keep", *product, *_flags(candidate)]
        include = [f"-I{root}" for root in (*headers.roots, *folders)]
        states = [folder_fingerprint(Path(folder)) for folder in folders]
        return _Job(
            key=_key(candidate, options + states, headers, nvcc_version(nvcc)),
            command=(nvcc, *options, *include, "-o", artifact, SOURCE),
            stdin=b"",
            headers=headers,
            artifact=artifact,
        )

    @functools.cached_property
    def _headers(self) -> Headers:
        return find_headers()

    @functools.cached_property
    def _own_headers(self) -> Headers:
        return find_own_headers()


def first_error(log: str) -> str:
    """The first line of a compiler's log that names an error, else its first line."""
    lines = [line.strip() for line in log.splitlines() if line.strip()]
    errors = (line for line in lines if _ERROR_LINE.match(line))
    return next(errors, lines[0] if lines else "the compiler gave no reason")[:_MESSAGE_CHARS]


def _key(candidate: AnyCandidate, options: list[str], headers: Headers, compiler: str) -> str:
    return digest([FORMAT, candidate.kind, candidate.source, options, headers.fingerprint, compiler], length=40)


def _flags(candidate: AnyCandidate) -> list[str]:
    flags = list(candidate.flags)
    if not any(flag.lstrip("-").startswith("std=") for flag in flags):
        flags.insert(0, _STANDARD)
    if candidate.kind == "device" and not {_LINES, "--generate-line-info"} & set(flags):
        flags.append(_LINES)
    return flags


def _limits(options: CompileOptions) -> Limits:
    return Limits(
        wall_s=options.timeout_s,
        cpu_s=math.ceil(options.timeout_s) + 1,
        memory_bytes=options.memory_bytes,
        file_bytes=options.max_output_bytes,
    )


def _refused(job: _Job, ended: Finished, log: str) -> bool:
    """Whether the compiler itself said no, which it would say again; a death or a full disk is no verdict."""
    said_no = ended.returncode == compile_child.REFUSED if job.stdin else ended.returncode > 0
    return said_no and not _TOOL_DIED.search(log)


def _death(ended: Finished, log: str, options: CompileOptions) -> str:
    limit = (
        f"its limits are {options.memory_bytes / 2**30:.0f} GiB of memory and {options.max_output_bytes / 2**20:.0f} MiB a file"
    )
    if ended.returncode < 0:
        return f"the compiler died with {signal.Signals(-ended.returncode).name}; {limit}"
    return f"the compiler gave up: {first_error(log)}; {limit}"[: 2 * _MESSAGE_CHARS]


def _log(scratch: Path, ended: Finished, headers: Headers) -> str:
    """What the compiler said, with the folders of headers left out: they say nothing and differ between machines."""
    file = scratch / LOG
    said = file.read_bytes() if file.is_file() else ended.stdout + ended.stderr
    text = said.decode(errors="replace")
    for folder in sorted((*headers.roots, scratch), key=lambda root: -len(str(root))):
        text = text.replace(f"{folder}/", "")
    return text


def _shortened(log: str) -> str:
    if len(log) <= _LOG_HEAD_CHARS + _LOG_TAIL_CHARS:
        return log
    left_out = len(log) - _LOG_HEAD_CHARS - _LOG_TAIL_CHARS
    return f"{log[:_LOG_HEAD_CHARS]}\n[{left_out} characters left out]\n{log[-_LOG_TAIL_CHARS:]}"


def _products(scratch: Path, artifact: str) -> dict[str, bytes]:
    """The artifact, its device code and PTX. nvcc names what it keeps after the architecture when it links."""
    cubins = [path for path in sorted(scratch.glob("kernel*.cubin")) if "dlink" not in path.name]
    ptx = sorted(scratch.glob("kernel*.ptx"))
    if not (cubins and ptx and (scratch / artifact).is_file()):
        raise MachineError(f"the compiler reported success but left no {artifact}, cubin or PTX")
    return {artifact: (scratch / artifact).read_bytes(), CUBIN: cubins[-1].read_bytes(), PTX: ptx[-1].read_bytes()}
