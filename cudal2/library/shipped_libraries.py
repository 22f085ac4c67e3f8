"""The libraries that come with the product, one per chip."""

from pathlib import Path

from cudal2.library.kernel_library import KernelLibrary, open_library
from cudal2.library.library_form import PACKED

FOLDER = Path(__file__).parent / "shipped"


def shipped_paths(folder: Path = FOLDER) -> list[Path]:
    """The largest first."""
    return sorted(folder.glob(f"*{PACKED}"), key=lambda path: (-path.stat().st_size, path.name))


def shipped_library(chip: str, folder: Path = FOLDER) -> KernelLibrary | None:
    """The library that was measured on a chip; None where none ships. Raises: LibraryError where one is damaged."""
    libraries = (open_library(path) for path in shipped_paths(folder))
    return next((library for library in libraries if library.manifest.chip == chip), None)
