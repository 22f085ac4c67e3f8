"""A tree of files to be indexed: its root, its name, and the paths in it."""

import re
from collections.abc import Sequence
from pathlib import Path, PurePosixPath

from contract.base import Record
from contract.errors import SourceError
from contract.knowledge import ReleaseKind
from indexer.listing import is_code

_VERSION_HEADER = "cutlass/version.h"
_MACRO = re.compile(r"^[ \t]*#[ \t]*define[ \t]+CUTLASS_(MAJOR|MINOR|PATCH)[ \t]+(\d+)", re.MULTILINE)
_NAME = re.compile(r"[A-Za-z0-9][A-Za-z0-9._+-]{0,99}")


class Tree(Record):
    """Files under `root`, by paths relative to it and in order; `origin` is a spec that `open_source` reads again."""

    root: Path
    name: str
    version: str
    kind: ReleaseKind
    origin: str
    files: tuple[str, ...]


class Label(Record):
    """What a source calls its release where no version header tells: `name` is the user's own choice, if any."""

    name: str | None
    title: str
    version: str
    origin: str


def plant(folder: Path, files: Sequence[str], label: Label) -> Tree:
    """The tree of a folder; where it holds CUTLASS, its include folder is the root and its macros name the release.

    Raises: SourceError for no file that can be split, and for a name that cannot be one.
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


def _tree(root: Path, files: Sequence[str], label: Label) -> Tree:
    return Tree(
        root=root,
        name=_checked(label.name) if label.name is not None else _made_name(label),
        version=label.version,
        kind="code" if any(is_code(path) for path in files) else "documents",
        origin=label.origin,
        files=tuple(sorted(files)),
    )


def _version_headers(files: Sequence[str]) -> list[str]:
    """Paths of CUTLASS version headers, the shallowest first."""
    found = [path for path in files if path == _VERSION_HEADER or path.endswith(f"/{_VERSION_HEADER}")]
    return sorted(found, key=lambda path: (len(PurePosixPath(path).parts), path))


def _cutlass_version(header: Path) -> str:
    """MAJOR.MINOR.PATCH as the header's macros say it; empty where they do not."""
    try:
        macros = dict(_MACRO.findall(header.read_text("utf-8", errors="replace")))
    except OSError:
        return ""
    return f"{macros['MAJOR']}.{macros['MINOR']}.{macros['PATCH']}" if len(macros) == 3 else ""


def _checked(name: str) -> str:
    if not _NAME.fullmatch(name):
        raise SourceError(
            f"{name!r} cannot name a release: letters, digits and . _ + - only, a letter or digit first, at most 100"
        )
    return name


def _made_name(label: Label) -> str:
    """Title and version, with what a release's name may not hold made a dash."""
    text = label.title if not label.version or label.version in label.title else f"{label.title}-{label.version}"
    name = re.sub(r"[^A-Za-z0-9._+-]+", "-", text).strip("-._+")[:100]
    if not name:
        raise SourceError(f"{label.origin}: no release name can be made of {label.title!r}; give one with --name")
    return name
