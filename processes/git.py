"""The one place that calls git. Nothing that a repository configures is run or followed.

Covered: every key of a repository's configuration that names a program, a server or another file (`core.sshCommand`,
`core.fsmonitor`, `core.hooksPath`, `include.path`, `remote.*.uploadpack`, filters, helpers, aliases), hooks, and fetches of
missing objects. A repository that lies on disk is read through a git directory of our own, which borrows objects, index
and references, and has a configuration of our own. A fetch runs in a repository of our own, for the scheme of its URL only.
Not covered: errors in git itself, and the user's own configuration, which is followed.
"""

import os
import re
import shutil
import stat
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import NamedTuple

_ENVIRONMENT = (
    *("GIT_TERMINAL_PROMPT=0", "GIT_ASKPASS=", "SSH_ASKPASS=", "GIT_LFS_SKIP_SMUDGE=1", "LC_ALL=C", "GIT_PAGER=cat"),
    *("GIT_NO_LAZY_FETCH=1", "GIT_OPTIONAL_LOCKS=0"),
)
_OF_OTHER_REPOSITORIES = (
    *("GIT_DIR", "GIT_WORK_TREE", "GIT_COMMON_DIR", "GIT_INDEX_FILE", "GIT_NAMESPACE"),
    *("GIT_OBJECT_DIRECTORY", "GIT_ALTERNATE_OBJECT_DIRECTORIES", "GIT_EXTERNAL_DIFF"),
)
_OPTIONS = ("core.fsmonitor=false", "core.hooksPath=/dev/null", "core.askPass=", "core.gitProxy=", "fetch.recurseSubmodules=no")
_SMALL_BYTES = 4096  # of a reference, and of a `.git` that is a file
_LARGE_BYTES = 1 << 30  # of an index, and of packed references
_MOST_REFERENCES = 200_000
_SHA256 = re.compile(rb"^\s*objectformat\s*=\s*\"?sha256\b", re.IGNORECASE | re.MULTILINE)


class Repository(NamedTuple):
    """Where a repository lies. `own`: HEAD and the index of a working tree; `shared`: objects and references."""

    own: Path
    shared: Path


def git_command(arguments: Sequence[str], git_dir: Path, work_tree: Path | None = None, scheme: str = "") -> list[str] | None:
    """The words of a git call in a git directory of our own; None without git. `scheme`: the only one it may fetch by."""
    git = shutil.which("git")
    if git is None:
        return None
    without = [word for name in _OF_OTHER_REPOSITORIES for word in ("-u", name)]
    allowed = f"GIT_ALLOW_PROTOCOL={'http:https' if scheme == 'http' else scheme}"
    options = [word for option in _OPTIONS for word in ("-c", option)]
    places = [f"--git-dir={git_dir}", *([f"--work-tree={work_tree}"] if work_tree else [])]
    return ["env", *without, *_ENVIRONMENT, allowed, git, *options, *places, *arguments]


def repository_at(folder: Path) -> Repository | None:
    """The repository of a working tree, of a linked or a submodule's one, or a bare one. None where none is found."""
    try:
        own = folder / ".git"
        if own.is_file():
            own = folder / _small(own).removeprefix(b"gitdir:").strip().decode()
        elif not own.is_dir():
            own = folder
        common = own / "commondir"
        shared = own / _small(common).strip().decode() if common.is_file() else own
        found = (own / "HEAD").is_file() and (shared / "objects").is_dir()
        return Repository(own.resolve(), shared.resolve()) if found else None
    except (OSError, ValueError):  # a missing file, a NUL in a path, a path that is not UTF-8
        return None


def borrow(repository: Repository, into: Path) -> None:
    """Make a git directory with the objects, the index and the references of another, and none of its configuration.

    Raises: OSError; ValueError for a repository whose files are too large or too many.
    """
    objects = str(repository.shared / "objects")
    if "\n" in objects:
        raise ValueError("the path of the repository has a line break")
    for name in ("objects/info", "refs"):
        (into / name).mkdir(parents=True)
    (into / "objects/info/alternates").write_text(f"{objects}\n", encoding="utf-8", errors="surrogateescape")
    (into / "config").write_text(_configuration(repository.shared / "config"))
    for folder, name in ((repository.own, "HEAD"), (repository.own, "index"), (repository.shared, "packed-refs")):
        _copy(folder / name, into / name, _LARGE_BYTES)
    _copy(repository.shared / "shallow", into / "shallow", _LARGE_BYTES)
    for part in repository.own.glob("sharedindex.*"):
        _copy(part, into / part.name, _LARGE_BYTES)
    for number, path in enumerate(_files(repository.shared / "refs")):
        if number >= _MOST_REFERENCES:
            raise ValueError(f"more than {_MOST_REFERENCES:,} references")
        _copy(path, into / path.relative_to(repository.shared), _SMALL_BYTES)


def _configuration(theirs: Path) -> str:
    """A configuration that holds the format of the objects only, since their hashes cannot be read without it."""
    wide = _is_plain(theirs, _LARGE_BYTES) and _SHA256.search(theirs.read_bytes())
    return f"[core]\nrepositoryformatversion = {int(bool(wide))}\n" + ("[extensions]\nobjectFormat = sha256\n" if wide else "")


def _files(folder: Path) -> Iterator[Path]:
    for where, _, names in os.walk(folder):
        yield from (Path(where) / name for name in names)


def _copy(source: Path, target: Path, most_bytes: int) -> None:
    """Copy a regular file; another kind of file is left out. Raises: ValueError for one that is too large."""
    if not _is_plain(source, most_bytes):
        return
    target.parent.mkdir(parents=True, exist_ok=True)
    shutil.copyfile(source, target)


def _is_plain(path: Path, most_bytes: int) -> bool:
    try:
        found = path.stat()
    except OSError:
        return False
    if stat.S_ISREG(found.st_mode) and found.st_size > most_bytes:
        raise ValueError(f"{path.name} has {found.st_size:,} bytes")
    return stat.S_ISREG(found.st_mode)


def _small(path: Path) -> bytes:
    with path.open("rb") as file:
        return file.read(_SMALL_BYTES)
