"""Builds a library from a store or from rows."""

from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import NamedTuple

from cudal2.library.kernel_library import KernelLibrary, open_library, shipped_library
from cudal2.library.library_form import PACKED
from cudal2_agent.agent.library.algorithms.algorithm_choice import NO_GAIN_TUNED, AlgorithmChoice, choose_algorithms
from cudal2_agent.agent.library.algorithms.tuned_products import TunedProduct, newest, read_tuned
from cudal2_agent.agent.library.entry_choice import (
    EXCLUDED,
    NOT_FASTER,
    EntryChoice,
    LeftOut,
    Product,
    Products,
    choose_entries,
    product_of,
)
from cudal2_agent.agent.library.library_writing import built_kernels, manifest_of, with_cubins, write_library
from cudal2_agent.agent.library.measured_kernels import (
    MeasuredKernel,
    Origins,
    chip_of,
    kernels_of_rows,
    kernels_of_store,
    origins_in,
    origins_in_row,
)
from cudal2_agent.contract.base import Record
from cudal2_agent.contract.errors import UsageError
from cudal2_agent.contract.foreign import read_file
from cudal2_agent.contract.records.library import LibraryEntry, LibraryManifest, MRange, StoredAlgorithm, product_words
from cudal2_agent.contract.records.task import ElementType, GemmTask, Layout, parse_shape
from cudal2_agent.contract.settings.settings import Settings
from cudal2_agent.store.store import open_store

TUNED = "-tuned"  # ends the name of a library with algorithms of `library tune`


class BuildOptions(Record):
    """`chip`: of the measurements, where there are several. `name`: of the library; None names it like its chip.

    `winning_only`: without kernels that do not beat AutoTuning. `cubins`: with built kernels, for machines without a compiler.
    `without`: products that get no entry. `tuned`: files of rows of `library tune`, which count before the rows of campaigns.
    """

    chip: str | None = None
    name: str | None = None
    winning_only: bool = True
    cubins: bool = False
    without: Products = frozenset()
    tuned: tuple[Path, ...] = ()


class BuiltLibrary(NamedTuple):
    """What a library was built of."""

    manifest: LibraryManifest
    kernels: EntryChoice
    algorithms: AlgorithmChoice


def read_products(file: Path) -> Products:
    """The products of a file that has one on each line, such as `512x4096x64 tn bf16`; what follows a # is a comment.

    A line without a layout means nn, one without an element type f16. Raises: UsageError, with the number of the line.
    """
    try:
        lines = read_file(file).decode().splitlines()
    except (OSError, ValueError) as exc:
        raise UsageError(f"{file} cannot be read as text ({exc})") from exc
    found = set[Product]()
    for number, line in enumerate(lines, 1):
        if words := line.partition("#")[0].split():
            try:
                found.add(_product(words))
            except (ValueError, UsageError) as exc:
                raise UsageError(
                    f"{file} line {number}: {line.strip()!r}: write a shape, a layout and an element type, "
                    "such as 512x4096x64 tn bf16; the last two may be left out"
                ) from exc
    return frozenset(found)


def _product(words: Sequence[str]) -> Product:
    """Raises: UsageError, ValueError for words that name no product."""
    meant: list[str] = [Layout.NN, ElementType.F16]  # by what is left out
    shape, layout, element = [*words, *meant[len(words) - 1 :]]
    m, n, k = parse_shape(shape)
    return f"{m}x{n}x{k}", Layout(layout), ElementType(element)


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
    stored = _with_tuned(stored, _tuned(options.tuned, chip), won, options.without)
    if not choice.entries and not stored.algorithms:
        reasons = sorted({one.reason for one in choice.left_out})
        raise UsageError(f"no kernel of {chip} can be an entry ({'; '.join(reasons)}); search more shapes with campaign run")
    name = options.name or chip.lower().replace(" ", "-")
    manifest = manifest_of(choice.entries, stored.algorithms, no_faster_of(choice.left_out), name=name, chip=chip)
    write_library(out, manifest, (*choice.entries, *stored.algorithms), files)
    return BuiltLibrary(manifest, choice, stored)


def no_faster_of(left_out: Sequence[LeftOut]) -> tuple[str, ...]:
    """The products that were measured without a gain: in the race that chose their kernel, or by who named them `without`."""
    return tuple(sorted(product_words(one.task) for one in left_out if one.reason in (NOT_FASTER, EXCLUDED)))


def library_to_extend(path: Path | None, chip: str) -> KernelLibrary | None:
    """The library at a path; without one, that which ships for the chip, if any. Raises: UsageError, LibraryError."""
    if path is None:
        return shipped_library(chip)
    base = open_library(path)
    if unfit := base.unfit_for(chip):
        raise UsageError(f"{unfit}; name another with --library")
    return base


def extend_library(
    base: KernelLibrary | None,
    rows: Sequence[TunedProduct],
    out: Path,
    chip: str,
    entries: Sequence[LibraryEntry] = (),
    without: frozenset[str] = frozenset(),
    no_faster: Sequence[str] = (),
    ranges: Sequence[MRange] = (),
) -> LibraryManifest | None:
    """A library with all that another holds, with further entries, and with the algorithms of tuned products.

    A product may have an entry too: of another driver, say, where no entry is chosen. `base`: None starts an empty one.
    `entries`: stand in for those that `base` has of their tasks, whose algorithms go too. `without`: ids of entries that are
    left out. `no_faster`: further products that were searched in vain. `ranges`: of M, in place of those of their entries. None
    where there is nothing to hold.
    Raises: UsageError where `out` cannot be written, or is one packed file and `base` has built kernels; LibraryError where
    `base` is damaged.
    """
    cubins, name, known = dict[str, bytes](), chip.lower().replace(" ", "-"), dict[GemmTask, LibraryEntry]()
    before = AlgorithmChoice((), ())
    if base is not None:
        cubins, name, known = built_kernels(base.path), base.manifest.name, {one.task: one for one in base}
        before = AlgorithmChoice(tuple(base.algorithms()), ())
        if cubins and out.name.endswith(PACKED):
            raise UsageError(f"{out} is one packed file, and {base.path} has built kernels; name a folder with --out")
    known |= {one.task: one for one in entries}
    held = tuple(sorted((one for one in known.values() if one.id not in without), key=lambda one: one.id))
    won = frozenset(one.task for one in entries if one.id not in without)
    kept = tuple(one for one in before.algorithms if one.task not in won)
    stored = _with_tuned(AlgorithmChoice(kept, ()), newest(rows), won, frozenset()).algorithms
    if not held and not stored:
        return None
    searched = {*(base.manifest.no_faster if base is not None else ()), *no_faster}
    vain = tuple(sorted(searched - {product_words(one.task) for one in held}))
    of_entry = {one.entry: one for one in (*(base.manifest.ranges if base is not None else ()), *ranges)}
    kept_ranges = tuple(of_entry[one.id] for one in held if one.id in of_entry)
    name = name if name.endswith(TUNED) else f"{name}{TUNED}"
    manifest = manifest_of(held, stored, vain, kept_ranges, name=name, chip=chip)
    write_library(out, manifest, (*held, *stored), cubins)
    return manifest


def _tuned(files: Sequence[Path], chip: str) -> Mapping[GemmTask, TunedProduct]:
    for file in files:
        if not file.is_file():
            raise UsageError(f"{file} with rows of `library tune` does not exist")
    return newest([row for file in files for row in read_tuned(file) if row.chip == chip])


def _with_tuned(
    choice: AlgorithmChoice, tuned: Mapping[GemmTask, TunedProduct], won: frozenset[GemmTask], without: Products
) -> AlgorithmChoice:
    """The choice, in which tuned tasks have what their tuning found, or nothing."""

    def found() -> Iterator[StoredAlgorithm | LeftOut]:
        yield from (one for one in choice.algorithms if one.task not in tuned)
        yield from (one for one in choice.left_out if one.task not in tuned)
        for task, row in tuned.items():
            if task not in won and product_of(task) not in without:
                yield row.algorithm or LeftOut(task, NO_GAIN_TUNED)

    every = list(found())
    algorithms = sorted((one for one in every if isinstance(one, StoredAlgorithm)), key=lambda one: one.id)
    return AlgorithmChoice(tuple(algorithms), tuple(one for one in every if isinstance(one, LeftOut)))
