"""The compiler: NVRTC in a child of a server by default; nvcc where a candidate asks for it, and for host candidates.

Covered: limits of wall-clock, CPU time, memory and file size; a content-addressed cache, which keeps compile errors but
never time-outs, deaths of the compiler or lack of memory or disk; a missing compiler; files that the compiler reads, where
this machine has a jail (`jail/`).
Not covered: where only Landlock works, a source for nvcc can find out whether a file outside exists.
"""

import functools
import math
import os
import re
import shutil
import signal
import stat
import threading
from dataclasses import dataclass, replace
from pathlib import Path

from cudal2_agent.contract.base import Record, digest
from cudal2_agent.contract.errors import CompilerMissing, MachineError
from cudal2_agent.contract.file_system import mount_of
from cudal2_agent.contract.host_limits import machine_memory, memory_limit
from cudal2_agent.contract.records.candidate import AnyCandidate, Candidate, HostCandidate
from cudal2_agent.contract.records.evaluation import CompileFailed, TimedOut
from cudal2_agent.contract.records.task import Arch
from cudal2_agent.contract.settings.options import CompileOptions
from cudal2_agent.sandbox.building import compile_child
from cudal2_agent.sandbox.building.cache import FORMAT, CompileCache
from cudal2_agent.sandbox.building.compile_child import CUBIN, LOG, PTX
from cudal2_agent.sandbox.building.compile_log import first_error, shortened, shown_log
from cudal2_agent.sandbox.building.headers import (
    NVRTC_HEADERS,
    Headers,
    cutlass_roots,
    find_headers,
    find_own_headers,
    folder_fingerprint,
)
from cudal2_agent.sandbox.building.toolchain import (
    CUTLASS_REMEDY,
    HOST_PROGRAMS,
    NVRTC_REMEDY,
    SYSTEM_HEADERS,
    device_programs,
    find_nvcc,
    nvcc_files,
    nvcc_version,
    nvrtc_version,
    toolkit_folder,
)
from cudal2_agent.sandbox.jail.entering import NOT_JAILED, Jail
from cudal2_agent.sandbox.jail.kind import confinement
from cudal2_agent.sandbox.workers.fork_servers import ForkServers
from cudal2_agent.sandbox.workers.process import ChildExit, Limits, run

SHARED = "kernel.so"
SOURCE = "kernel.cu"
_STANDARD = "-std=c++17"
_LINES = "-lineinfo"  # for the emulator's reports and for profiles; the machine code is the same without it
_MESSAGE_CHARS = 300
_NVCC_BYTES = 3 * 1024**3  # of memory, which CUTLASS's collective builder takes; one compiler per so many is at work
_OF_CUTLASS = re.compile(r"#\s*include\s*[<\"](?:cute|cutlass)/")
_TOOL_DIED = re.compile(
    r"died due to signal|bad_alloc|out of memory|no space left|file size limit|file too large", re.IGNORECASE
)


class Compiled(Record):
    """A compilation that succeeded, in the cache. `cubin_path`: the device code, for a host candidate too, for inspection.

    `seconds`: what the compiler took when it ran; for a `cached` compilation that was earlier.
    """

    artifact_path: str
    cubin_path: str
    ptx_path: str
    log: str
    seconds: float
    cached: bool


class Cancelled(Exception):
    """The caller cancelled the compilation; never raised outside the sandbox."""


@dataclass(frozen=True)
class _Compilation:
    """One compilation, and the key under which its products are stored.

    `command`: nvcc's; empty for NVRTC. `request`: NVRTC's; None for nvcc. `readable`: what nvcc may read in its jail, of
    which it may execute the `programs`. `roots`: folders whose files a log may quote.
    """

    key: str
    command: tuple[str, ...]
    request: dict[str, object] | None
    readable: tuple[str, ...]
    roots: tuple[Path, ...]
    artifact: str
    programs: tuple[str, ...] | None = None


class Compiler:
    """Compiles candidates, each once. Thread-safe. `cache`: what was compiled."""

    def __init__(self, options: CompileOptions) -> None:
        self._options = options
        self.cache = CompileCache(Path(options.cache_dir))
        self.cache.sweep()
        self._servers = ForkServers(compile_child.__name__)
        self._nvcc_turns = threading.BoundedSemaphore(max((memory_limit() or machine_memory()) // _NVCC_BYTES, 1))

    def close(self) -> None:
        """End the processes that wait for the next compilation."""
        self._servers.close()

    def compile(
        self, candidate: AnyCandidate, arch: Arch, cancel: threading.Event | None = None
    ) -> Compiled | CompileFailed | TimedOut:
        """Compile for an architecture, or find it in the cache.

        Raises: CompilerMissing, MachineError, WorkerError; Cancelled once `cancel` is set.
        """
        nvrtc = isinstance(candidate, Candidate) and candidate.compiler == "nvrtc"
        job = self._nvrtc_job(candidate, arch) if nvrtc else self._nvcc_job(candidate, arch)
        outcome: Compiled | CompileFailed | TimedOut | None = self._load(job.key, job.artifact, cached=True)
        if outcome is None:
            scratch = self.cache.scratch()
            try:
                outcome = self._compile(job, candidate.source, scratch, cancel)
            finally:
                shutil.rmtree(scratch, ignore_errors=True)
        if isinstance(outcome, CompileFailed):
            return outcome.model_copy(update={"message": outcome.message + _advice(candidate.source, nvrtc=nvrtc)})
        return outcome

    def _compile(
        self, job: _Compilation, source: str, scratch: Path, cancel: threading.Event | None
    ) -> Compiled | CompileFailed | TimedOut:
        ended = self._run(job, source, scratch, cancel)
        if ended.ended_by == "cancel":
            raise Cancelled
        if ended.timed_out:
            return TimedOut(stage="compile", limit_s=self._options.timeout_s)
        _require_ours(job, ended)
        log = _log(scratch, ended, source, job)
        if ended.returncode and not _refused(job, ended, log):
            return CompileFailed(message=_death(ended, log, self._options), log=shortened(log))
        files = {LOG: log.encode(), SOURCE: source.encode()}
        if not ended.returncode:
            files |= _products(scratch, job.artifact)
        self.cache.save(job.key, files, compiled=not ended.returncode, seconds=ended.seconds)
        outcome = self._load(job.key, job.artifact, cached=False)
        if outcome is None:
            raise MachineError(f"{self._options.cache_dir}: an entry of the compile cache vanished as it was written")
        return outcome

    def _run(self, job: _Compilation, source: str, scratch: Path, cancel: threading.Event | None) -> ChildExit:
        """Raises: MachineError, WorkerError."""
        layers, home = confinement().layers, str(scratch.resolve())
        limits = _limits(self._options)
        try:
            (scratch / SOURCE).write_text(source, encoding="utf-8", newline="")
            if job.request is None:
                jail = Jail(write=(home,), read=job.readable, programs=job.programs, devices=("/dev/null",), layers=layers)
                with self._nvcc_turns:
                    return run(job.command, scratch=scratch, limits=replace(limits, jail=jail), cancel=cancel)
            jail = Jail(write=(home,), read=tuple(str(root) for root in job.roots), layers=layers)
            # It enters a network namespace with its jail: two user namespaces cannot be entered one after the other.
            limits = replace(limits, network=layers.mounts)
            return self._servers.run(job.request | {"jail": jail.as_request()}, scratch=scratch, limits=limits, cancel=cancel)
        except OSError as exc:
            raise MachineError(
                f"{self._options.cache_dir} is not writable: {exc.strerror}; free space or choose another"
            ) from exc

    def _load(self, key: str, artifact: str, *, cached: bool) -> Compiled | CompileFailed | None:
        entry = self.cache.load(key)
        if entry is None:
            return None
        folder = self.cache.path(key)
        log = (folder / LOG).read_text(encoding="utf-8")
        if not entry.compiled:
            return CompileFailed(message=first_error(log), log=shortened(log))
        return Compiled(
            artifact_path=str(folder / artifact),
            cubin_path=str(folder / CUBIN),
            ptx_path=str(folder / PTX),
            log=log,
            seconds=entry.seconds,
            cached=cached,
        )

    def _nvrtc_job(self, candidate: AnyCandidate, arch: Arch) -> _Compilation:
        headers = self._headers
        options = [f"--gpu-architecture={arch}", "--ptxas-options=-v", "-DNDEBUG", *_flags(candidate)]
        include = [f"--include-path={root}" for root in headers.roots]
        request: dict[str, object] = {"source": candidate.source, "options": options + include, "headers": NVRTC_HEADERS}
        return _Compilation(
            key=_key(candidate, options, headers, f"nvrtc {nvrtc_version()}"),
            command=(),
            request=request,
            readable=(),
            roots=headers.roots,
            artifact=CUBIN,
        )

    def _nvcc_job(self, candidate: AnyCandidate, arch: Arch) -> _Compilation:
        host = isinstance(candidate, HostCandidate)
        nvcc = find_nvcc(self._options.nvcc, host=host)
        if host and (mount := mount_of(Path(self._options.cache_dir))) and not mount.executes:
            raise MachineError(
                f"the compile cache {self._options.cache_dir} lies on {mount.point}, which is mounted without execution, and a "
                "host candidate is a library; set CUDAL2_HOME to a folder elsewhere"
            )
        toolkit = toolkit_folder(nvcc)
        headers = find_own_headers(toolkit)
        folders = candidate.include_dirs if isinstance(candidate, HostCandidate) else ()
        artifact = SHARED if host else CUBIN
        code = f"arch=compute_{arch.removeprefix('sm_')},code={arch}"
        product = ("-shared", "-Xcompiler=-fPIC") if host else ("-cubin", "--expt-relaxed-constexpr")
        options = ["-gencode", code, "-Xptxas=-v", "-DNDEBUG", "-keep", *product, *_flags(candidate)]
        include = [f"-I{root}" for root in (*headers.roots, *folders)]
        states = [folder_fingerprint(Path(folder)) for folder in folders]
        return _Compilation(
            key=_key(candidate, options + states, headers, nvcc_version(nvcc)),
            command=(nvcc, *options, *include, "-o", artifact, SOURCE),
            request=None,
            readable=(*nvcc_files(nvcc), *(str(root) for root in headers.roots), *folders, *(HOST_PROGRAMS if host else ())),
            roots=(*headers.roots, toolkit, *SYSTEM_HEADERS, *(Path(folder) for folder in folders)),
            artifact=artifact,
            programs=None if host else device_programs(nvcc),
        )

    @functools.cached_property
    def _headers(self) -> Headers:
        return find_headers()


def _key(candidate: AnyCandidate, options: list[str], headers: Headers, compiler: str) -> str:
    return digest([FORMAT, candidate.kind, candidate.source, options, headers.fingerprint, compiler], length=40)


def _flags(candidate: AnyCandidate) -> list[str]:
    flags = list(candidate.flags)
    if not any(flag.lstrip("-").startswith("std=") for flag in flags):
        flags.insert(0, _STANDARD)
    if candidate.kind == "device" and not {_LINES, "--generate-line-info"} & set(flags):
        flags.append(_LINES)
    return flags


def _advice(source: str, *, nvrtc: bool) -> str:
    """What helps a source with CUTLASS's headers that was refused for them."""
    if not _OF_CUTLASS.search(source):
        return ""
    if nvrtc:
        return '; NVRTC does not compile the headers of CuTe and CUTLASS: write "compiler": "nvcc" into the plan'
    return "" if cutlass_roots() else f"; the headers of CuTe and CUTLASS are not installed: {CUTLASS_REMEDY}"


def _limits(options: CompileOptions) -> Limits:
    return Limits(
        wall_s=options.timeout_s,
        cpu_s=math.ceil(options.timeout_s) + 1,
        memory_bytes=options.memory_bytes,
        file_bytes=options.max_output_bytes,
        devices=False,
    )


def _require_ours(job: _Compilation, ended: ChildExit) -> None:
    """Raises: CompilerMissing, MachineError for failures that no source causes."""
    said = ended.stderr.decode(errors="replace")
    if job.request is not None and ended.returncode == compile_child.MISSING:
        raise CompilerMissing(f"NVRTC cannot be loaded; {NVRTC_REMEDY}", log=said)
    if ended.returncode == NOT_JAILED:
        raise MachineError("the compiler's jail, which works on this machine, was refused; see the log", log=said)


def _refused(job: _Compilation, ended: ChildExit, log: str) -> bool:
    """Whether the compiler itself refused the source, as it would again. A killed compiler or a full disk is no verdict."""
    said_no = ended.returncode == compile_child.REFUSED if job.request else ended.returncode > 0
    return said_no and not _TOOL_DIED.search(log)


def _death(ended: ChildExit, log: str, options: CompileOptions) -> str:
    limit = (
        f"its limits are {options.memory_bytes / 2**30:.0f} GiB of memory and {options.max_output_bytes / 2**20:.0f} MiB a file"
    )
    if ended.returncode < 0:
        return f"the compiler died with {signal.Signals(-ended.returncode).name}; {limit}"
    return f"the compiler gave up: {first_error(log)}; {limit}"[: 2 * _MESSAGE_CHARS]


def _log(scratch: Path, ended: ChildExit, source: str, job: _Compilation) -> str:
    """The compiler's messages, as far as they may be shown."""
    said = _plain(scratch / LOG)
    if not said or ended.returncode not in (compile_child.COMPILED, compile_child.REFUSED):
        said = b"\n".join(filter(None, (ended.stdout + ended.stderr, said)))  # the reason of the failure comes first
    return shown_log(said.decode(errors="replace"), source, scratch, job.roots)


def _products(scratch: Path, artifact: str) -> dict[str, bytes]:
    """The artifact, its device code and its PTX. When nvcc links, it names the kept files after the architecture."""
    cubins = [path for path in sorted(scratch.glob("kernel*.cubin")) if "dlink" not in path.name]
    ptx = sorted(scratch.glob("kernel*.ptx"))
    if not (cubins and ptx and (scratch / artifact).is_file()):
        raise MachineError(f"the compiler reported success but left no {artifact}, cubin or PTX")
    return {artifact: _plain(scratch / artifact), CUBIN: _plain(cubins[-1]), PTX: _plain(ptx[-1])}


def _plain(path: Path) -> bytes:
    """The content of a file that a compiler wrote; empty where it is absent, a link or not a regular file."""
    try:
        descriptor = os.open(path, os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC)
    except OSError:
        return b""
    with open(descriptor, "rb") as file:
        return file.read() if stat.S_ISREG(os.fstat(descriptor).st_mode) else b""
