"""Tells the kinds of sources apart and opens one."""

from collections.abc import Iterator
from contextlib import AbstractContextManager, contextmanager, nullcontext
from pathlib import Path

from packaging.utils import InvalidWheelFilename, parse_wheel_filename

from cudal2_agent.contract.errors import SourceError
from cudal2_agent.contract.events import Emit, IndexProgress
from cudal2_agent.indexer.sources.archive import SUFFIXES, archive_suffix, stem, unpack, version_in
from cudal2_agent.indexer.sources.checkout import checkout_tree, remote, remote_tree
from cudal2_agent.indexer.sources.command import RunCommand, run_command
from cudal2_agent.indexer.sources.folder import file_tree, folder_tree
from cudal2_agent.indexer.sources.package import package_tree, wanted_package
from cudal2_agent.indexer.sources.scratch import scratch
from cudal2_agent.indexer.tree import ReleaseLabel, Tree


@contextmanager
def open_source(spec: str, *, name: str | None, work_dir: Path, emit: Emit, run: RunCommand = run_command) -> Iterator[Tree]:
    """The files that a spec names, on disk until the context ends.

    `4.2.0` is CUTLASS from the package registry, `NAME==VERSION` is any package, `git+URL@TAG` is a repository. Every other
    spec is the path of an archive, a git checkout, a folder or a file. A folder named like a version is written `./4.2.0`.
    Raises: SourceError.
    """
    emit(IndexProgress(release=name or spec, stage="fetch", done=0, total=1))
    with _opened(spec, name, work_dir, emit, run) as tree:
        emit(IndexProgress(release=tree.name, stage="fetch", done=1, total=1))
        yield tree


def _opened(spec: str, name: str | None, work_dir: Path, emit: Emit, run: RunCommand) -> AbstractContextManager[Tree]:
    if package := wanted_package(spec):
        return package_tree(package, name, work_dir, emit, run)
    if repository := remote(spec):
        return remote_tree(repository, name, work_dir, emit, run)
    return _opened_path(spec, _resolved(spec), name, work_dir, emit, run)


def _resolved(spec: str) -> Path:
    try:
        return Path(spec).expanduser().resolve(strict=True)
    except (OSError, RuntimeError, ValueError) as exc:  # a missing path, a loop of links, a NUL character
        raise SourceError(
            f"{spec!r} is not a file or folder; a source is a CUTLASS version (4.2.0), NAME==VERSION, git+URL@TAG, "
            "or a path to an archive, a git checkout or a folder"
        ) from exc


def _opened_path(
    spec: str, path: Path, name: str | None, work_dir: Path, emit: Emit, run: RunCommand
) -> AbstractContextManager[Tree]:
    if path.is_dir() and (path / ".git").exists():
        return nullcontext(checkout_tree(path, name, str(path), work_dir, emit, run))
    if path.is_dir():
        return nullcontext(
            folder_tree(path, ReleaseLabel(name=name, title=path.name, version=version_in(path.name), origin=str(path)), emit)
        )
    if archive_suffix(path):
        return _archive_tree(path, name, work_dir, emit)
    if not path.is_file():
        raise SourceError(f"{spec} is neither a folder nor a file; archives end in {', '.join(SUFFIXES)}")
    return nullcontext(file_tree(path, ReleaseLabel(name=name, title=path.stem, version="", origin=str(path))))


@contextmanager
def _archive_tree(archive: Path, name: str | None, work_dir: Path, emit: Emit) -> Iterator[Tree]:
    title, version = _title(archive)
    with scratch(work_dir) as folder:
        unpack(archive, folder)
        yield folder_tree(folder, ReleaseLabel(name=name, title=title, version=version, origin=str(archive)), emit)


def _title(archive: Path) -> tuple[str, str]:
    """Title and version from an archive's name; the title of a wheel is in the registry's spelling."""
    try:
        package, version, *_ = parse_wheel_filename(archive.name)
    except InvalidWheelFilename:
        title = stem(archive)
        return title, version_in(title)
    return str(package), str(version)
