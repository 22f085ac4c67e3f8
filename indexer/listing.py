"""Lists the files of a folder that can be split, by name and file type.

Covered: loops of links (links to folders are not followed), links that leave the folder, pipes and devices, names that are
not UTF-8, folders that cannot be read.
"""

import os
import stat
from collections.abc import Iterator
from pathlib import Path, PurePosixPath

from cudal2_agent.contract.events import Emit, Notice

_NAMED = 3


class Skips:
    """Names by reason. A reason follows 'RELEASE: ' in the notice."""

    def __init__(self) -> None:
        self._names: dict[str, list[str]] = {}

    def add(self, reason: str, name: str) -> None:
        self._names.setdefault(reason, []).append(name)

    def report(self, release: str, emit: Emit) -> None:
        for reason, names in self._names.items():
            more = f" and {len(names) - _NAMED} more" if len(names) > _NAMED else ""
            shown = ", ".join(printable(name) for name in names[:_NAMED])
            emit(Notice(message=f"{release}: {reason} ({len(names)}): {shown}{more}"))


def printable(name: str) -> str:
    """A file name with control characters and invalid UTF-8 escaped, safe for a terminal and for JSON."""
    return name if name.isprintable() else ascii(name)


CODE_SUFFIXES = frozenset(
    {".h", ".hpp", ".hh", ".hxx", ".cuh", ".cu", ".inl", ".inc", ".cpp", ".cc", ".cxx", ".ipp", ".py", ".pyi"}
)
DOCUMENT_SUFFIXES = frozenset({".md", ".rst", ".html", ".htm", ".pdf", ".txt"})
_IGNORED = frozenset({"__pycache__", "node_modules"})
_METADATA = (".dist-info", ".egg-info")  # written by an installer beside a package
_BUILD_LISTS = frozenset({"CMakeLists.txt", "requirements.txt"})  # not documents, despite the suffix


def is_code(path: str) -> bool:
    return PurePosixPath(path).suffix.lower() in CODE_SUFFIXES


def is_document(path: str) -> bool:
    name = PurePosixPath(path)
    return name.suffix.lower() in DOCUMENT_SUFFIXES and name.name not in _BUILD_LISTS


def is_wanted(path: str) -> bool:
    """Whether a file can be split and is not below an ignored folder."""
    folders = PurePosixPath(path).parts[:-1]
    return (is_code(path) or is_document(path)) and not any(_ignored(folder) for folder in folders)


def list_files(folder: Path, skips: Skips) -> list[str]:
    """Sorted paths of the regular files below a folder that can be split. Files left out are added to `skips`."""
    inside = os.path.realpath(folder)
    return sorted(name for name in _names(folder, skips) if is_wanted(name) and is_sound(folder, name, inside, skips))


def is_sound(folder: Path, name: str, inside: str, skips: Skips) -> bool:
    """Whether a file may be read: a regular file, inside `inside` after links are resolved, with a UTF-8 name."""
    path = folder / name
    if not _is_utf8(name):
        skips.add("skipped, name is not UTF-8", name)
    elif os.path.commonpath([inside, os.path.realpath(path)]) != inside:
        skips.add("skipped, link out of the tree", name)
    elif not _is_regular(path):
        skips.add("skipped, not a regular file", name)
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
        folders[:] = sorted(name for name in folders if not _ignored(name))
        yield from ((base / name).as_posix() for name in sorted(files))


def _ignored(folder: str) -> bool:
    return folder.startswith(".") or folder in _IGNORED or folder.endswith(_METADATA)


def _is_utf8(name: str) -> bool:
    try:
        name.encode()
    except UnicodeEncodeError:  # bytes that are not UTF-8 are represented by lone surrogates
        return False
    return True


def _is_regular(path: Path) -> bool:
    try:
        return stat.S_ISREG(path.stat().st_mode)  # fails for a loop of links and for a dangling link
    except OSError:
        return False
