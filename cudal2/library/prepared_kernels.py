"""The cache of built kernels, which `cudal2-agent library prepare` fills: `CUDAL2_HOME/cache/library`.

A cubin is named `<source_sha256>-<arch>.cubin`: entries with equal sources share it. A plan is named
`<source_sha256>-<arch>-<task id>-<SMs>.json`, because it is resolved for one task and one number of SMs.
"""

import hashlib
from pathlib import Path
from typing import NamedTuple

from pydantic import ValidationError

from contract.errors import LibraryError
from contract.library import LibraryEntry, PreparedKernel
from contract.plan import ResolvedPlan

_AGAIN = "`cudal2-agent library prepare` builds it again"


class CachedKernel(NamedTuple):
    """A kernel that is ready to be loaded. `plan`: as the entry is launched, with or without programmatic launch."""

    cubin: bytes
    plan: ResolvedPlan


class PreparedKernels:
    """Kernels in a folder, by entry and number of SMs."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder

    def find(self, entry: LibraryEntry, sms: int) -> CachedKernel | None:
        """The built kernel of an entry; None where it was not built yet. Raises: LibraryError where its files are damaged."""
        cubin, plan = self.cubin_path(entry), self.plan_path(entry, sms)
        return read_kernel(entry, cubin, plan, again=_AGAIN) if plan.exists() and cubin.exists() else None

    def cubin_path(self, entry: LibraryEntry) -> Path:
        return self.folder / f"{stem_of(entry)}.cubin"

    def plan_path(self, entry: LibraryEntry, sms: int) -> Path:
        return self.folder / f"{stem_of(entry)}-{entry.task.id}-{sms}.json"


def read_kernel(entry: LibraryEntry, cubin: Path, plan: Path, *, again: str) -> CachedKernel:
    """The kernel in two files. `again`: what to do where they are damaged. Raises: LibraryError."""
    try:
        record = PreparedKernel.model_validate_json(plan.read_bytes())
        content = cubin.read_bytes()
    except (OSError, ValidationError) as exc:
        file = plan if isinstance(exc, ValidationError) else exc.filename
        raise LibraryError(f"{file} is missing or damaged ({type(exc).__name__}); {again}") from exc
    if hashlib.sha256(content).hexdigest() != record.cubin_sha256:
        raise LibraryError(f"{cubin} is damaged: it is not the kernel of its plan; {again}")
    if (record.task, record.source_sha256) != (entry.task, entry.source_sha256):
        raise LibraryError(f"{plan} is damaged: it is the plan of another entry; {again}")
    return CachedKernel(content, record.plan if entry.programmatic else without_programmatic(record.plan))


def stem_of(entry: LibraryEntry) -> str:
    """What is compiled once: a source for an architecture."""
    return f"{entry.source_sha256}-{entry.task.arch}"


def without_programmatic(plan: ResolvedPlan) -> ResolvedPlan:
    """The plan with plain launches, as an entry of a plain measurement is launched."""
    return plan.model_copy(update={"launches": tuple(one.model_copy(update={"programmatic": False}) for one in plan.launches)})
