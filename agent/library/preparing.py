"""Builds entries of a library into the cache that `cudal2` launches from.

Covered: several processes at once, which build each source once; a process killed at any moment; damaged files, which are
built again.
"""

import hashlib
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor, as_completed
from contextlib import closing, contextmanager
from functools import partial
from pathlib import Path
from typing import Literal, NamedTuple

from filelock import FileLock

from cudal2.library.prepared_kernels import PreparedKernels
from cudal2_agent.agent.library.entry_source import candidate_of
from cudal2_agent.agent.wiring.gpus import visible_sms
from cudal2_agent.contract.base import Record
from cudal2_agent.contract.errors import LibraryError, MachineError, PlanError
from cudal2_agent.contract.plan.chip import LIMITS, REFERENCE_CHIPS
from cudal2_agent.contract.plan.resolve import resolve
from cudal2_agent.contract.records.build import Built
from cudal2_agent.contract.records.library import LibraryEntry, PreparedKernel, RangeKernel
from cudal2_agent.contract.records.task import Arch, GemmTask
from cudal2_agent.contract.settings.settings import Settings
from cudal2_agent.contract.whole_file import whole_file
from cudal2_agent.sandbox.building.builder import Builder
from cudal2_agent.sandbox.building.headers import find_headers
from cudal2_agent.sandbox.building.toolchain import nvrtc_package, nvrtc_version

LOCKS = "locks"


class PreparedEntry(Record):
    """What became of an entry. `shape`: what it was built for. `ready`: its kernel was in the cache already.

    `message`: why it failed, or the verdict of the emulator on a kernel that is built for another M; else empty.
    """

    id: str
    shape: str
    layout: str
    status: Literal["built", "ready", "failed"]
    message: str = ""


class FreshKernel(NamedTuple):
    """What a build gives: a cubin, and the record beside it. `message`: as of `PreparedEntry`."""

    cubin: bytes
    record: PreparedKernel | RangeKernel
    message: str = ""


def library_cache(settings: Settings) -> Path:
    """The folder of built kernels."""
    return settings.home / "cache" / "library"


def sms_for(arch: Arch) -> int:
    """SMs that plans are resolved for: of the first GPU of the arch at hand, else of the reference chip."""
    return visible_sms(arch) or REFERENCE_CHIPS[arch].sms


def prepare(entries: Sequence[LibraryEntry], settings: Settings, sms: int) -> Iterator[PreparedEntry]:
    """Build entries of one arch in parallel, each source once. Yields each outcome as it is known.

    An entry that is stale or does not compile fails alone. Raises: CompilerMissing, MachineError, WorkerError.
    """
    if not entries:
        return
    nvrtc_version()
    find_headers()
    kernels = opened_cache(settings)
    chip = REFERENCE_CHIPS[entries[0].task.arch].model_copy(update={"sms": sms})
    with closing(Builder(settings.compile_options(), chip)) as builder, compiler_threads(settings.compile_jobs) as pool:
        pending = [
            pool.submit(into_cache, entry, entry.task, kernels, sms, partial(_build, entry, builder, sms)) for entry in entries
        ]
        for done in as_completed(pending):
            yield done.result()


def opened_cache(settings: Settings) -> PreparedKernels:
    """Raises: MachineError where it is not writable."""
    kernels = PreparedKernels(library_cache(settings))
    _require_writable(kernels.folder / LOCKS)
    return kernels


def into_cache(
    entry: LibraryEntry, task: GemmTask, kernels: PreparedKernels, sms: int, build: Callable[[], FreshKernel]
) -> PreparedEntry:
    """Build the kernel of an entry for a task unless it is there. Of several processes that do so, one builds.

    `build` raises LibraryError or PlanError where the kernel cannot be built. Raises: MachineError, and as `build`.
    """
    outcome = partial(PreparedEntry, id=entry.id, shape=task.shape, layout=task.layout.value)
    cubin, plan = kernels.cubin_path(entry, task), kernels.plan_path(entry, sms, task)
    return into_place(outcome, CachePlace(cubin, plan, lambda: kernels.find(entry, sms, task)), kernels.folder, build)


class CachePlace(NamedTuple):
    """The two files of a kernel. `find`: None where they do not hold it. Raises LibraryError where they are damaged."""

    cubin: Path
    plan: Path
    find: Callable[[], object | None]


def into_place(
    outcome: Callable[..., PreparedEntry], place: CachePlace, folder: Path, build: Callable[[], FreshKernel]
) -> PreparedEntry:
    """As `into_cache`, for any place in the cache's folder."""
    try:
        with FileLock(folder / LOCKS / f"{place.cubin.stem}.lock"):
            if _ready(place):
                return outcome(status="ready")
            fresh = build()
            _keep(fresh, place.cubin, place.plan)
            return outcome(status="built", message=fresh.message)
    except (LibraryError, PlanError) as exc:
        return outcome(status="failed", message=" ".join(str(exc).split()))
    except OSError as exc:
        raise unwritable(folder, exc) from exc


def require_nvrtc(entry: LibraryEntry) -> None:
    """Raises: LibraryError where this NVRTC compiles another kernel than the entry was measured with."""
    found = nvrtc_version().partition(" ")[0]
    if entry.nvrtc and found != entry.nvrtc:
        raise LibraryError(
            f"entry {entry.id[:8]} was measured with NVRTC {entry.nvrtc}, and {found}, which is installed, compiles another "
            f"kernel; install '{nvrtc_package(entry.nvrtc)}=={entry.nvrtc}.*', or measure anew with this one"
        )


def _ready(place: CachePlace) -> bool:
    try:
        return place.find() is not None
    except LibraryError:  # damaged: it is built again
        return False


def _build(entry: LibraryEntry, builder: Builder, sms: int) -> FreshKernel:
    """Raises: LibraryError, PlanError."""
    require_nvrtc(entry)
    candidate = candidate_of(entry)
    plan = resolve(candidate.plan, entry.task, LIMITS[entry.task.arch], sms)
    built = builder.build_one(candidate, entry.task, briefly=True)
    if not isinstance(built, Built):
        raise LibraryError(built.headline)
    cubin = Path(built.artifact_path).read_bytes()
    record = PreparedKernel(
        task=entry.task,
        source_sha256=entry.source_sha256,
        cubin_sha256=hashlib.sha256(cubin).hexdigest(),
        compiler=f"nvrtc {nvrtc_version()}",
        plan=plan,
    )
    return FreshKernel(cubin, record)


def _keep(fresh: FreshKernel, cubin: Path, plan: Path) -> None:
    """The kernel is written before its plan, so that no plan lacks it."""
    if not cubin.is_file() or cubin.read_bytes() != fresh.cubin:
        write_whole(cubin, fresh.cubin)
    write_whole(plan, fresh.record.model_dump_json().encode())


@contextmanager
def compiler_threads(count: int) -> Iterator[ThreadPoolExecutor]:
    """Threads that wait for compilers; those that did not begin are not started after an interrupt."""
    pool = ThreadPoolExecutor(count, thread_name_prefix="prepare")
    try:
        yield pool
    finally:
        pool.shutdown(wait=True, cancel_futures=True)


def write_whole(path: Path, content: bytes) -> None:
    with whole_file(path) as temporary:
        temporary.write_bytes(content)


def _require_writable(folder: Path) -> None:
    """Raises: MachineError."""
    try:
        folder.mkdir(parents=True, exist_ok=True)
        with whole_file(folder / "writable"):
            pass
    except OSError as exc:
        raise unwritable(folder.parent, exc) from exc


def unwritable(folder: Path, exc: OSError) -> MachineError:
    why = exc.strerror or exc
    return MachineError(f"{folder} is not writable ({why}); free some space, or set CUDAL2_HOME to another folder")
