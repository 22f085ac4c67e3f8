"""Builds a library from a store or from rows."""

from collections.abc import Callable, Sequence
from pathlib import Path
from typing import NamedTuple

from agent.library.algorithm_choice import AlgorithmChoice, choose_algorithms
from agent.library.entry_choice import EntryChoice, Products, choose_entries
from agent.library.library_cubins import with_cubins
from agent.library.library_writing import manifest_of, write_library
from agent.library.measured_kernels import (
    MeasuredKernel,
    Origins,
    chip_of,
    kernels_of_rows,
    kernels_of_store,
    origins_in,
    origins_in_row,
)
from contract.base import Record
from contract.errors import UsageError
from contract.library import LibraryManifest
from contract.settings import Settings
from contract.task import Layout, parse_shape
from cudal2.library.library_form import PACKED
from policies.trajectories.store import open_store


class BuildOptions(Record):
    """`chip`: of the measurements, where there are several. `name`: of the library; None names it like its chip.

    `winning_only`: without kernels that do not beat AutoTuning. `cubins`: with built kernels, for machines without a compiler.
    `without`: products that get no entry.
    """

    chip: str | None = None
    name: str | None = None
    winning_only: bool = True
    cubins: bool = False
    without: Products = frozenset()


class BuiltLibrary(NamedTuple):
    """What a library was built of."""

    manifest: LibraryManifest
    kernels: EntryChoice
    algorithms: AlgorithmChoice


def read_products(file: Path) -> Products:
    """The products of a file that has one on each line, such as `512x4096x64 nn`; what follows a # is a comment.

    Raises: UsageError, with the number of the line.
    """
    try:
        lines = file.read_text("utf-8").splitlines()
    except (OSError, UnicodeDecodeError) as exc:
        raise UsageError(f"{file} cannot be read as text ({exc})") from exc
    found = set[tuple[str, Layout]]()
    for number, line in enumerate(lines, 1):
        words = line.partition("#")[0].split()
        if not words:
            continue
        shape, layout = words[0], words[-1] if len(words) > 1 else Layout.NN
        if len(words) > 2 or layout not in tuple(Layout):
            raise UsageError(f"{file} line {number}: {line.strip()!r}: write a shape and a layout, such as 512x4096x64 nn")
        try:
            m, n, k = parse_shape(shape)
        except UsageError as exc:
            raise UsageError(f"{file} line {number}: {exc}") from exc
        found.add((f"{m}x{n}x{k}", Layout(layout)))
    return frozenset(found)


def build_from_rows(rows: Sequence[Path], out: Path, options: BuildOptions, settings: Settings) -> BuiltLibrary:
    """Raises: UsageError where there is nothing to build, a row is damaged, or `out` cannot be written; as `with_cubins`."""
    return _build(kernels_of_rows(rows), origins_in_row, out, options, settings)


def build_from_store(out: Path, options: BuildOptions, settings: Settings) -> BuiltLibrary:
    """Raises: as `build_from_rows`; StoreError."""
    with open_store(settings.store_url) as store:
        return _build(kernels_of_store(store), lambda kernel: origins_in(store, kernel), out, options, settings)


def _build(
    kernels: Sequence[MeasuredKernel],
    origins: Callable[[MeasuredKernel], Origins],
    out: Path,
    options: BuildOptions,
    settings: Settings,
) -> BuiltLibrary:
    if options.cubins and out.name.endswith(PACKED):
        raise UsageError(f"{out} is one packed file, which holds no kernels; name a folder with --out, or leave out --cubins")
    chip = chip_of(kernels, options.chip)
    wanted = [one for one in kernels if one.chip == chip]
    choice = choose_entries(wanted, origins, winning_only=options.winning_only, without=options.without)
    files = dict[str, bytes]()
    if options.cubins:
        choice, files = with_cubins(choice, settings)
    won = frozenset(entry.task for entry in choice.entries if entry.wins)
    stored = choose_algorithms(wanted, origins, won=won, without=options.without)
    if not choice.entries and not stored.algorithms:
        reasons = sorted({one.reason for one in choice.left_out})
        raise UsageError(f"no kernel of {chip} can be an entry ({'; '.join(reasons)}); search more shapes with campaign run")
    name = options.name or chip.lower().replace(" ", "-")
    manifest = manifest_of(choice.entries, stored.algorithms, name=name, chip=chip)
    write_library(out, manifest, (*choice.entries, *stored.algorithms), files)
    return BuiltLibrary(manifest, choice, stored)
