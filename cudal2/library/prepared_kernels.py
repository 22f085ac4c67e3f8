"""The cache of built kernels, which `cudal2-agent library prepare` fills: `CUDAL2_HOME/cache/library`.

A cubin is named `<source_sha256>-<arch>.cubin`: entries with equal sources share it. A plan is named
`<source_sha256>-<arch>-<task id>-<SMs>.json`, because it is resolved for one task and one number of SMs. A kernel for a
padded M has another text: between the source and the ending its two names have `<task id>-for-<task id of the smaller M>`,
and those of a kernel for a range of M `<task id>-range`.
"""

import hashlib
from pathlib import Path
from typing import NamedTuple, TypeVar

from cudal2_agent.contract.errors import LibraryError
from cudal2_agent.contract.foreign import parse_record, read_file
from cudal2_agent.contract.plan.chip import LIMITS
from cudal2_agent.contract.plan.plan import LaunchPlan, ResolvedPlan
from cudal2_agent.contract.plan.resolve import resolve
from cudal2_agent.contract.records.library import LibraryEntry, MRange, PaddedKernel, PreparedKernel, RangeKernel
from cudal2_agent.contract.records.task import GemmTask

_Kind = TypeVar("_Kind", PreparedKernel, RangeKernel)
_AGAIN = "`cudal2-agent library prepare` builds it again"


class CachedKernel(NamedTuple):
    """A kernel that is ready to be loaded. `plan`: as the entry is launched, with or without programmatic launch.

    `shared`: as of `BuiltKernel`.
    """

    cubin: bytes
    plan: ResolvedPlan
    shared: bool = False


class RangedKernel(NamedTuple):
    """A kernel of an entry that takes M as it comes. `plan`: in sizes of the product."""

    cubin: bytes
    plan: LaunchPlan
    programmatic: bool

    def at(self, task: GemmTask, sms: int) -> CachedKernel:
        """The kernel as it is launched for a task. Raises: PlanError."""
        plan = resolve(self.plan, task, LIMITS[task.arch], sms)
        return CachedKernel(self.cubin, plan if self.programmatic else without_programmatic(plan), shared=True)


class PreparedKernels:
    """Kernels in a folder, by entry and number of SMs. `task`: of the smaller M that an entry serves; None is its own."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder

    def find(self, entry: LibraryEntry, sms: int, task: GemmTask | None = None) -> CachedKernel | None:
        """The built kernel of an entry; None where it was not built yet. Raises: LibraryError where its files are damaged."""
        cubin, plan = self.cubin_path(entry, task), self.plan_path(entry, sms, task)
        return read_kernel(entry, cubin, plan, task, again=_AGAIN) if plan.exists() and cubin.exists() else None

    def find_range(self, entry: LibraryEntry, m_range: MRange, sms: int) -> RangedKernel | None:
        """The kernel of an entry for a range of M; None where it was not built yet, or for a shorter range or another text.

        Raises: LibraryError where its files are damaged.
        """
        cubin, plan = self.range_paths(entry, sms)
        if not plan.exists() or not cubin.exists():
            return None
        record, content = _read_pair(RangeKernel, entry, cubin, plan, _AGAIN)
        if (record.entry_task, record.source_sha256) != (entry.task, entry.source_sha256):
            raise LibraryError(f"{plan} is damaged: it is the plan of another entry; {_AGAIN}")
        if record.smallest > m_range.smallest or record.text_sha256 != m_range.source_sha256:
            return None
        return RangedKernel(content, record.plan, entry.programmatic)

    def range_paths(self, entry: LibraryEntry, sms: int) -> tuple[Path, Path]:
        """Of the cubin and of the plan."""
        stem = f"{stem_of(entry)}-{entry.task.id}-range"
        return self.folder / f"{stem}.cubin", self.folder / f"{stem}-{sms}.json"

    def cubin_path(self, entry: LibraryEntry, task: GemmTask | None = None) -> Path:
        return self.folder / f"{stem_of(entry, task)}.cubin"

    def plan_path(self, entry: LibraryEntry, sms: int, task: GemmTask | None = None) -> Path:
        stem = stem_of(entry, task)
        return self.folder / (f"{stem}-{sms}.json" if is_padded(entry, task) else f"{stem}-{entry.task.id}-{sms}.json")


def read_kernel(entry: LibraryEntry, cubin: Path, plan: Path, task: GemmTask | None = None, *, again: str) -> CachedKernel:
    """The kernel in two files, for `task` where that is not the entry's. `again`: what to do where they are damaged.

    Raises: LibraryError.
    """
    record, content = _read_pair(PaddedKernel if is_padded(entry, task) else PreparedKernel, entry, cubin, plan, again)
    of_entry = record.entry_task if isinstance(record, PaddedKernel) else record.task
    if (record.task, of_entry, record.source_sha256) != (task or entry.task, entry.task, entry.source_sha256):
        raise LibraryError(f"{plan} is damaged: it is the plan of another entry; {again}")
    return CachedKernel(content, record.plan if entry.programmatic else without_programmatic(record.plan))


def _read_pair(kind: type[_Kind], entry: LibraryEntry, cubin: Path, plan: Path, again: str) -> tuple[_Kind, bytes]:
    """A record and the cubin that it is of, compiled as the entry's was. Raises: LibraryError."""
    try:
        record = parse_record(kind, read_file(plan))
        content = read_file(cubin)
    except (OSError, ValueError) as exc:
        file = exc.filename if isinstance(exc, OSError) else plan
        raise LibraryError(f"{file} is missing or damaged ({type(exc).__name__}); {again}") from exc
    if hashlib.sha256(content).hexdigest() != record.cubin_sha256:
        raise LibraryError(f"{cubin} is damaged: it is not the kernel of its plan; {again}")
    if entry.nvrtc and record.nvrtc != entry.nvrtc:
        raise LibraryError(f"{cubin} was built by {record.compiler}, its entry measured with NVRTC {entry.nvrtc}; {again}")
    return record, content


def is_padded(entry: LibraryEntry, task: GemmTask | None) -> bool:
    return task is not None and task != entry.task


def stem_of(entry: LibraryEntry, task: GemmTask | None = None) -> str:
    """What is compiled once: a source for an architecture, or the text that its schedule has for another task."""
    own = f"{entry.source_sha256}-{entry.task.arch}"
    return f"{own}-{entry.task.id}-for-{task.id}" if task is not None and task != entry.task else own


def without_programmatic(plan: ResolvedPlan) -> ResolvedPlan:
    """The plan with plain launches, as an entry of a plain measurement is launched."""
    return plan.model_copy(update={"launches": tuple(one.model_copy(update={"programmatic": False}) for one in plan.launches)})
