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
        path = self.plan_path(entry, sms)
        try:
            record = PreparedKernel.model_validate_json(path.read_bytes())
            cubin = self.cubin_path(entry).read_bytes()
        except FileNotFoundError:
            return None
        except (OSError, ValidationError) as exc:
            raise LibraryError(f"{path} is damaged ({type(exc).__name__}); {_AGAIN}") from exc
        if hashlib.sha256(cubin).hexdigest() != record.cubin_sha256:
            raise LibraryError(f"{self.cubin_path(entry)} is damaged: it is not the cubin of its plan; {_AGAIN}")
        return CachedKernel(cubin=cubin, plan=record.plan if entry.programmatic else without_programmatic(record.plan))

    def cubin_path(self, entry: LibraryEntry) -> Path:
        return self.folder / f"{stem_of(entry)}.cubin"

    def plan_path(self, entry: LibraryEntry, sms: int) -> Path:
        return self.folder / f"{stem_of(entry)}-{entry.task.id}-{sms}.json"


def stem_of(entry: LibraryEntry) -> str:
    """What is compiled once: a source for an architecture."""
    return f"{entry.source_sha256}-{entry.task.arch}"


def without_programmatic(plan: ResolvedPlan) -> ResolvedPlan:
    """The plan with plain launches, as an entry of a plain measurement is launched."""
    return plan.model_copy(update={"launches": tuple(one.model_copy(update={"programmatic": False}) for one in plan.launches)})
