"""The library that a command reads: a folder or a packed file that the user names, else the one that ships."""

from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

if TYPE_CHECKING:
    from cudal2.library.kernel_library import KernelLibrary
    from cudal2_agent.contract.records.library import LibraryEntry, StoredAlgorithm

LibraryPath = Annotated[
    Path | None,
    typer.Option(
        "--library",
        metavar="FOLDER|FILE",
        help="Default: the one that ships for the GPU at hand, else for the H200.",
        show_default=False,
    ),
]
ExtendedLibrary = Annotated[
    Path | None,
    typer.Option(
        "--library", metavar="FOLDER|FILE", help="What is extended; default: what ships for the GPU.", show_default=False
    ),
]
WrittenLibrary = Annotated[
    Path, typer.Option("--out", metavar="FOLDER|FILE", help="A folder, or a packed file *.jsonl.gz.", show_default=False)
]
Sms = Annotated[
    int | None,
    typer.Option("--sms", help="SMs of the GPU; default: of the one at hand, else of the H200.", min=1, show_default=False),
]
Jobs = Annotated[int | None, typer.Option("--jobs", help="Compilers at a time.", min=1, show_default=False)]
ALL = "all"


def opened(path: Path | None) -> "KernelLibrary":
    """Raises: UsageError, LibraryError."""
    from cudal2.library.kernel_library import open_library, shipped_paths
    from cudal2_agent.agent.wiring.gpus import visible_gpus
    from cudal2_agent.contract.errors import UsageError

    if path is not None:
        return open_library(path)
    libraries = [open_library(one) for one in shipped_paths()]
    if not libraries:
        raise UsageError("no library ships with this product; name one with --library, or make one: cudal2-agent library build")
    chips = {gpu.chip for gpu in visible_gpus()}
    return next((library for library in libraries if library.manifest.chip in chips), libraries[0])


def held(library: "KernelLibrary", entry: str) -> "list[LibraryEntry | StoredAlgorithm]":
    """All entries and algorithms, or the one that an id names. Raises: UsageError, LibraryError."""
    return [*library, *library.algorithms()] if entry == ALL else [library.entry(entry)]


def chosen(library: "KernelLibrary", entry: str) -> "list[LibraryEntry]":
    """All entries, or the one that an id names. Raises: UsageError, also for the id of an algorithm; LibraryError."""
    from cudal2_agent.contract.errors import UsageError
    from cudal2_agent.contract.records.library import LibraryEntry

    if entry == ALL:
        return list(library)
    found = library.entry(entry)
    if not isinstance(found, LibraryEntry):
        raise UsageError(
            f"{found.id[:8]} is an algorithm of cuBLASLt: it has no source, and nothing of it is built or exported"
        )
    return [found]
