"""Entries of a library as files for other programs. Kernels are built into the cache first."""

from collections.abc import Sequence
from pathlib import Path

from cudal2.launcher.loaded_kernel import BuiltKernel
from cudal2.library.prepared_kernels import PreparedKernels
from cudal2_agent.agent.library.entry_source import candidate_of
from cudal2_agent.agent.library.export.export_cpp import CppExport, export_cpp
from cudal2_agent.agent.library.export.export_hub import export_hub
from cudal2_agent.agent.library.preparing import library_cache, prepare, sms_for
from cudal2_agent.agent.wiring.policy import primitives
from cudal2_agent.contract.errors import LibraryError
from cudal2_agent.contract.plan.chip import REFERENCE_CHIPS
from cudal2_agent.contract.records.library import LibraryEntry, LibraryManifest
from cudal2_agent.contract.records.task import Arch
from cudal2_agent.contract.settings.settings import Settings
from cudal2_agent.policies.exports.flashinfer.flashinfer import BenchCounts, write_solutions


def export_to_cpp(
    manifest: LibraryManifest, entries: Sequence[LibraryEntry], out: Path, settings: Settings, sms: int | None
) -> CppExport:
    """Raises: UsageError, LibraryError where an entry cannot be built, CompilerMissing, MachineError, WorkerError."""
    kernels = built_kernels(entries, settings, sms or sms_for(Arch(manifest.arch)))
    return export_cpp(kernels, manifest, out)


def export_to_hub(
    manifest: LibraryManifest, entries: Sequence[LibraryEntry], out: Path, settings: Settings, sms: int | None
) -> CppExport:
    """Raises: as `export_to_cpp`."""
    kernels = built_kernels(entries, settings, sms or sms_for(Arch(manifest.arch)))
    return export_hub(kernels, manifest, out)


def export_to_flashinfer_bench(
    manifest: LibraryManifest, entries: Sequence[LibraryEntry], out: Path, sms: int | None
) -> BenchCounts:
    """Solutions with their definitions and workloads, without traces. Raises: UsageError; LibraryError for a stale entry."""
    arch = Arch(manifest.arch)
    chip = REFERENCE_CHIPS[arch].model_copy(update={"name": manifest.chip, "sms": sms or sms_for(arch)})
    return write_solutions(((entry.task, chip, candidate_of(entry)) for entry in entries), out, dict(primitives()))


def built_kernels(entries: Sequence[LibraryEntry], settings: Settings, sms: int) -> list[tuple[LibraryEntry, BuiltKernel]]:
    """Each entry with its machine code and the plan for a number of SMs. Raises: as `export_to_cpp`."""
    failed = [one for one in prepare(entries, settings, sms) if one.status == "failed"]
    if failed:
        raise LibraryError(
            f"{len(failed)} of {len(entries)} entries cannot be built; the first is {failed[0].id[:8]}: {failed[0].message}"
        )
    cache = PreparedKernels(library_cache(settings))
    found = [(entry, cache.find(entry, sms)) for entry in entries]
    return [(entry, BuiltKernel(kernel.cubin, kernel.plan, entry.task)) for entry, kernel in found if kernel is not None]
