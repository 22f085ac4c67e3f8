"""Builds a library from a store or from rows."""

from collections.abc import Callable, Sequence
from pathlib import Path

from agent.library.entry_choice import EntryChoice, choose_entries
from agent.library.library_writing import manifest_of, write_library
from agent.library.measured_kernels import (
    MeasuredKernel,
    Origins,
    chip_of,
    kernels_of_rows,
    kernels_of_store,
    origins_in,
)
from contract.errors import UsageError
from contract.library import LibraryManifest
from policies.trajectories.store import open_store


def build_from_rows(
    rows: Sequence[Path], out: Path, *, chip: str | None, name: str | None, winning_only: bool
) -> tuple[LibraryManifest, EntryChoice]:
    """Raises: UsageError where there is nothing to build, a row is damaged, or `out` cannot be written."""
    return _build(kernels_of_rows(rows), lambda _: Origins(), out, chip, name, winning_only)


def build_from_store(
    store_url: str, out: Path, *, chip: str | None, name: str | None, winning_only: bool
) -> tuple[LibraryManifest, EntryChoice]:
    """Raises: as `build_from_rows`; StoreError."""
    with open_store(store_url) as store:
        return _build(kernels_of_store(store), lambda kernel: origins_in(store, kernel), out, chip, name, winning_only)


def _build(
    kernels: Sequence[MeasuredKernel],
    origins: Callable[[MeasuredKernel], Origins],
    out: Path,
    chip: str | None,
    name: str | None,
    winning_only: bool,
) -> tuple[LibraryManifest, EntryChoice]:
    wanted = chip_of(kernels, chip)
    choice = choose_entries([one for one in kernels if one.chip == wanted], origins, winning_only=winning_only)
    if not choice.entries:
        reasons = sorted({one.reason for one in choice.left_out})
        raise UsageError(f"no kernel of {wanted} can be an entry ({'; '.join(reasons)}); search more shapes with campaign run")
    manifest = manifest_of(choice.entries, name=name or wanted.lower().replace(" ", "-"), chip=wanted)
    write_library(out, manifest, choice.entries)
    return manifest, choice
