"""Compiles the kernels of the batch-invariant mode into the cache of built kernels, each once.

Covered: several processes at once; a process killed at any moment; damaged files, which are built again; sources that another
version of the product wrote.
"""

import hashlib
from contextlib import closing
from pathlib import Path
from typing import Literal

from filelock import FileLock

from cudal2.library.invariant_set import cubin_path, read_set, set_path
from cudal2.version import __version__
from cudal2_agent.agent.library.entry_source import source_sha256
from cudal2_agent.agent.library.preparing import LOCKS, compiler_threads, opened_cache, unwritable, write_whole
from cudal2_agent.contract.base import Record
from cudal2_agent.contract.errors import LibraryError
from cudal2_agent.contract.plan.chip import REFERENCE_CHIPS
from cudal2_agent.contract.records.build import Built
from cudal2_agent.contract.records.library import InvariantKernel, InvariantSet
from cudal2_agent.contract.records.task import Arch
from cudal2_agent.contract.settings.settings import Settings
from cudal2_agent.policies.schedule.invariant_kernels import InvariantSource, invariant_sources
from cudal2_agent.sandbox.building.builder import Builder
from cudal2_agent.sandbox.building.headers import find_headers
from cudal2_agent.sandbox.building.toolchain import nvrtc_version


class PreparedSet(Record):
    """What became of a set. `ready`: it was in the cache already. `message`: why it failed, else empty."""

    part: Literal["batch-invariant"] = "batch-invariant"
    arch: Arch
    kernels: int
    status: Literal["built", "ready", "failed"]
    message: str = ""

    def __str__(self) -> str:
        line = f"{self.kernels} batch-invariant kernels for {self.arch}: {self.status}"
        return f"{line}: {self.message}" if self.message else line


def prepare_invariant(arch: Arch, settings: Settings) -> PreparedSet:
    """Build the set of an architecture unless it is there. Raises: CompilerMissing, MachineError, WorkerError."""
    nvrtc_version()
    find_headers()
    sources, folder = list(invariant_sources(arch)), opened_cache(settings).folder
    try:
        with FileLock(folder / LOCKS / f"{set_path(folder, arch).stem}.lock"):
            if _ready(folder, arch, sources):
                return PreparedSet(arch=arch, kernels=len(sources), status="ready")
            _build(folder, arch, sources, settings)
            return PreparedSet(arch=arch, kernels=len(sources), status="built")
    except LibraryError as exc:
        return PreparedSet(arch=arch, kernels=len(sources), status="failed", message=" ".join(str(exc).split()))
    except OSError as exc:
        raise unwritable(folder, exc) from exc


def _ready(folder: Path, arch: Arch, sources: list[InvariantSource]) -> bool:
    try:
        found = read_set(folder, arch, __version__)
    except LibraryError:  # damaged: it is built again
        return False
    wanted = [(one.task.layout, one.wave, one.row, one.summation, source_sha256(one.candidate)) for one in sources]
    kernels = () if found is None else found.kernels.kernels
    return [(one.layout, one.wave, one.row, one.summation, one.source_sha256) for one in kernels] == wanted


def _build(folder: Path, arch: Arch, sources: list[InvariantSource], settings: Settings) -> None:
    """The set is written last, so that no set lacks a kernel. Raises: LibraryError where one does not compile."""
    with (
        closing(Builder(settings.compile_options(), REFERENCE_CHIPS[arch])) as builder,
        compiler_threads(settings.compile_jobs) as pool,
    ):
        kernels = list(pool.map(lambda source: _into_cache(folder, source, builder), sources))
    found = InvariantSet(product=__version__, arch=arch, compiler=f"nvrtc {nvrtc_version()}", kernels=tuple(kernels))
    write_whole(set_path(folder, arch), found.model_dump_json().encode())


def _into_cache(folder: Path, source: InvariantSource, builder: Builder) -> InvariantKernel:
    """Raises: LibraryError."""
    built = builder.build_one(source.candidate, source.task, briefly=True)
    if not isinstance(built, Built):
        raise LibraryError(f"a {source.summation} kernel does not compile: {built.headline}")
    cubin, name = Path(built.artifact_path).read_bytes(), source_sha256(source.candidate)
    write_whole(cubin_path(folder, name, source.task.arch), cubin)
    return InvariantKernel(
        layout=source.task.layout,
        element=source.task.element,
        n_step=source.n_step,
        k_step=source.k_step,
        tile=source.tile,
        wave=source.wave,
        row=source.row,
        per_sm=source.per_sm,
        plan=source.candidate.plan,
        summation=source.summation,
        source_sha256=name,
        cubin_sha256=hashlib.sha256(cubin).hexdigest(),
    )
