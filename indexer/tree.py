"""A tree of files to index: its root, its name and its paths."""

import re
from collections.abc import Sequence
from pathlib import Path, PurePosixPath

from cudal2_agent.contract.base import Record
from cudal2_agent.contract.errors import SourceError
from cudal2_agent.contract.records.knowledge import ReleaseKind
from cudal2_agent.indexer.listing import is_code

_VERSION_HEADER = "cutlass/version.h"
_MACRO = re.compile(r"^[ \t]*#[ \t]*define[ \t]+CUTLASS_(MAJOR|MINOR|PATCH)[ \t]+(\d+)", re.MULTILINE)
_NAME = re.compile(r"[A-Za-z0-9][A-Za-z0-9._+-]{0,99}")


class Tree(Record):
    """Sorted paths relative to `root`. `origin`: a spec from which `open_source` reads the tree again."""

    root: Path
    name: str
    version: str
    kind: ReleaseKind
    origin: str
    files: tuple[str, ...]


class ReleaseLabel(Record):
    """The name of a release that has no version header. `name`: the user's choice, if any."""

    name: str | None
    title: str
    version: str
    origin: str


def plant(folder: Path, files: Sequence[str], label: ReleaseLabel) -> Tree:
    """The tree of a folder. If it contains CUTLASS, the include folder is the root and its macros name the release.

    Raises: SourceError if no file can be split, or for an invalid name.
    """
    if not files:
        raise SourceError(
            f"{label.origin}: no C++, CUDA, Python or document file in it; name a folder or archive that has some"
        )
    for header in _version_headers(files):
        version = _cutlass_version(folder / header)
        if version:
            prefix = header.removesuffix(_VERSION_HEADER)
            inside = [path.removeprefix(prefix) for path in files if path.startswith(prefix)]
            return _tree(folder / prefix, inside, label.model_copy(update={"title": "cutlass", "version": version}))
    return _tree(folder, files, label)


def _tree(root: Path, files: Sequence[str], label: ReleaseLabel) -> Tree:
    return Tree(
        root=root,
        name=_checked(label.name) if label.name is not None else _made_name(label),
        version=label.version,
        kind="code" if any(is_code(path) for path in files) else "documents",
        origin=label.origin,
        files=tuple(sorted(files)),
    )


def _version_headers(files: Sequence[str]) -> list[str]:
    """Paths of CUTLASS version headers, fewest folders first."""
    found = [path for path in files if path == _VERSION_HEADER or path.endswith(f"/{_VERSION_HEADER}")]
    return sorted(found, key=lambda path: (len(PurePosixPath(path).parts), path))


def _cutlass_version(header: Path) -> str:
    """MAJOR.MINOR.PATCH from the header's macros; empty if they are incomplete."""
    try:
        macros = dict(_MACRO.findall(header.read_text("utf-8", errors="replace")))
    except OSError:
        return ""
    return f"{macros['MAJOR']}.{macros['MINOR']}.{macros['PATCH']}" if len(macros) == 3 else ""


def _checked(name: str) -> str:
    if not _NAME.fullmatch(name):
        raise SourceError(
            f"{name!r} cannot name a release: use at most 100 letters, digits and . _ + -, starting with a letter or digit"
        )
    return name


def _made_name(label: ReleaseLabel) -> str:
    """Title and version, with a dash for characters that a release name may not contain."""
    text = label.title if not label.version or label.version in label.title else f"{label.title}-{label.version}"
    name = re.sub(r"[^A-Za-z0-9._+-]+", "-", text).strip("-._+")[:100]
    if not name:
        raise SourceError(f"{label.origin}: {label.title!r} gives no valid release name; choose one with --name")
    return name
