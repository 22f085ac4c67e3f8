"""Which files of a folder can be split, by their names and kinds alone.

Covered: loops of links (links to folders are never followed), links that leave the folder, pipes and devices, names that
are no UTF-8, folders that cannot be read.
"""

import os
import stat
from collections.abc import Iterator
from pathlib import Path, PurePosixPath

from indexer.skips import Skips

CODE_SUFFIXES = frozenset(
    {".h", ".hpp", ".hh", ".hxx", ".cuh", ".cu", ".inl", ".inc", ".cpp", ".cc", ".cxx", ".ipp", ".py", ".pyi"}
)
DOCUMENT_SUFFIXES = frozenset({".md", ".rst", ".html", ".htm", ".pdf", ".txt"})
_PASSED_OVER = frozenset({"__pycache__", "node_modules"})
_METADATA = (".dist-info", ".egg-info")  # what an installer writes beside a package
_BUILD_LISTS = frozenset({"CMakeLists.txt", "requirements.txt"})  # text by suffix only


def is_code(path: str) -> bool:
    return PurePosixPath(path).suffix.lower() in CODE_SUFFIXES


def is_document(path: str) -> bool:
    name = PurePosixPath(path)
    return name.suffix.lower() in DOCUMENT_SUFFIXES and name.name not in _BUILD_LISTS


def is_wanted(path: str) -> bool:
    """True for a file that can be split and does not lie under a folder that is passed over."""
    folders = PurePosixPath(path).parts[:-1]
    return (is_code(path) or is_document(path)) and not any(_passed_over(folder) for folder in folders)


def list_files(folder: Path, skips: Skips) -> list[str]:
    """Paths under the folder of the regular files that can be split, in order; what is left out goes into `skips`."""
    inside = os.path.realpath(folder)
    return sorted(name for name in _names(folder, skips) if is_wanted(name) and is_sound(folder, name, inside, skips))


def is_sound(folder: Path, name: str, inside: str, skips: Skips) -> bool:
    """Whether a file may be read: regular, inside `inside` whatever links its path takes, with a name that can be stored."""
    path = folder / name
    if not _is_utf8(name):
        skips.add("skipped, name is not UTF-8", name)
    elif os.path.commonpath([inside, os.path.realpath(path)]) != inside:
        skips.add("skipped, link out of the tree", name)
    elif not _is_regular(path):
        skips.add("skipped, no regular file", name)
    else:
        return True
    return False


def _names(folder: Path, skips: Skips) -> Iterator[str]:
    def unreadable(error: OSError) -> None:
        skips.add("skipped, folder cannot be read", os.path.relpath(error.filename, folder))

    for where, folders, files in os.walk(folder, onerror=unreadable):
        base = Path(where).relative_to(folder)
        for name in folders:
            if os.path.islink(os.path.join(where, name)):
                skips.add("links to folders not followed", (base / name).as_posix())
        folders[:] = sorted(name for name in folders if not _passed_over(name))
        yield from ((base / name).as_posix() for name in sorted(files))


def _passed_over(folder: str) -> bool:
    return folder.startswith(".") or folder in _PASSED_OVER or folder.endswith(_METADATA)


def _is_utf8(name: str) -> bool:
    try:
        name.encode()
    except UnicodeEncodeError:  # the bytes of a name that is none come as lone surrogates
        return False
    return True


def _is_regular(path: Path) -> bool:
    try:
        return stat.S_ISREG(path.stat().st_mode)  # also a loop of links and a link to nothing end here
    except OSError:
        return False
