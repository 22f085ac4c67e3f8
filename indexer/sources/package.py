"""A package of the registry by name and version, from site-packages if it is installed there, else through pip."""

import importlib.metadata
import re
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from packaging.requirements import InvalidRequirement, Requirement
from packaging.specifiers import SpecifierSet
from packaging.utils import canonicalize_name, parse_sdist_filename, parse_wheel_filename
from packaging.version import Version

from cudal2_agent.contract.base import Record
from cudal2_agent.contract.errors import SourceError
from cudal2_agent.contract.events import Emit, Notice
from cudal2_agent.indexer.listing import Skips, is_sound, is_wanted
from cudal2_agent.indexer.sources.archive import unpack
from cudal2_agent.indexer.sources.command import CommandResult, RunCommand
from cudal2_agent.indexer.sources.folder import folder_tree
from cudal2_agent.indexer.sources.scratch import scratch
from cudal2_agent.indexer.tree import ReleaseLabel, Tree, plant

CUTLASS_PACKAGE = "nvidia-cutlass"
CUTLASS_REPOSITORY = "https://github.com/NVIDIA/cutlass"
FETCH_TIMEOUT_S = 600.0
_VERSION = re.compile(r"v?(\d+(?:\.\d+){1,3})")
_PINNED = re.compile(r"[A-Za-z0-9][A-Za-z0-9._-]*==[A-Za-z0-9][A-Za-z0-9.!+*_-]*")
_AVAILABLE = re.compile(r"\(from versions: ([^)]*)\)")
_UNREACHABLE = re.compile(
    r"connection broken|establish a new connection|name resolution|NameResolutionError|ProxyError|SSLError|timed out|"
    r"Could not fetch URL"
)
_SHOWN_VERSIONS = 12


class Wanted(Record):
    """One package at one version. `requirement`: as pip reads it. `origin`: as the user wrote it."""

    name: str
    specifier: str
    origin: str

    @property
    def requirement(self) -> str:
        return f"{self.name}{self.specifier}"


def wanted_package(spec: str) -> Wanted | None:
    """The package of a spec `4.2.0` or `NAME==VERSION`; None for another kind of spec. Raises: SourceError if invalid."""
    if version := _VERSION.fullmatch(spec):
        return Wanted(name=CUTLASS_PACKAGE, specifier=f"=={version.group(1)}.*", origin=version.group(1))
    if not _PINNED.fullmatch(spec):
        return None
    try:
        requirement = Requirement(spec)
    except InvalidRequirement as exc:
        raise SourceError(
            f"{spec!r} is not a package and a version: write NAME==VERSION, for example nvidia-cutlass==4.2.0.0"
        ) from exc
    return Wanted(name=canonicalize_name(requirement.name), specifier=str(requirement.specifier), origin=spec)


@contextmanager
def package_tree(wanted: Wanted, name: str | None, work_dir: Path, emit: Emit, run: RunCommand) -> Iterator[Tree]:
    """The files of a package. Raises: SourceError with the available versions, or with the reason why pip failed."""
    installed = _installed(wanted, name, emit)
    if installed is not None:
        yield installed
        return
    with scratch(work_dir) as folder:
        archive = _fetch(wanted, folder, emit, run)
        unpacked = folder / "unpacked"
        unpack(archive, unpacked)
        label = ReleaseLabel(name=name, title=wanted.name, version=_version_of(archive), origin=wanted.origin)
        yield folder_tree(unpacked, label, emit)


def _installed(wanted: Wanted, name: str | None, emit: Emit) -> Tree | None:
    """The installed package, if it has that version and files that can be split."""
    try:
        found = importlib.metadata.distribution(wanted.name)
    except importlib.metadata.PackageNotFoundError:
        return None
    if not SpecifierSet(wanted.specifier).contains(found.version, prereleases=True):
        return None
    root = Path(str(found.locate_file("")))
    skips = Skips()
    listed = [path.as_posix() for path in found.files or () if ".." not in path.parts and is_wanted(path.as_posix())]
    files = [path for path in listed if is_sound(root, path, str(root.resolve()), skips)]
    skips.report(wanted.origin, emit)
    label = ReleaseLabel(name=name, title=wanted.name, version=found.version, origin=wanted.origin)
    return plant(root, files, label) if files else None  # an editable install lists none of its sources


def _fetch(wanted: Wanted, folder: Path, emit: Emit, run: RunCommand) -> Path:
    """The wheel of a package, or its source archive if there is no wheel."""
    finished = _download(wanted, "--only-binary=:all:", folder, run)
    if finished.returncode != 0 and not _versions(finished) and not _reason(finished) and wanted.name != CUTLASS_PACKAGE:
        emit(Notice(message=f"{wanted.requirement} has no wheel; fetching its source, whose build script pip then runs"))
        finished = _download(wanted, f"--no-binary={wanted.name}", folder, run)
    fetched = sorted(folder.iterdir())
    if finished.returncode != 0 or len(fetched) != 1:
        raise _failure(wanted, finished)
    return fetched[0]


def _download(wanted: Wanted, choice: str, target: Path, run: RunCommand) -> CommandResult:
    """Run pip download with the user's pip configuration. It runs in the target folder, so no stray pip.py is imported."""
    command = [sys.executable, "-m", "pip", "download", "--no-deps", choice, "--no-input", "--disable-pip-version-check"]
    return run([*command, "--progress-bar=off", f"--dest={target}", wanted.requirement], target, FETCH_TIMEOUT_S)


def _failure(wanted: Wanted, finished: CommandResult) -> SourceError:
    log = f"{finished.stdout}\n{finished.stderr}"
    if versions := _versions(finished):
        shown = ", ".join(versions[-_SHOWN_VERSIONS:])
        version = wanted.specifier.strip("=.*")
        what = f"{wanted.name} {version} is not available for this Python; available: {shown}"
        return SourceError(f"{what}{_elsewhere(version, versions) if wanted.name == CUTLASS_PACKAGE else ''}", log=log)
    if reason := _reason(finished):
        return SourceError(f"{wanted.requirement} cannot be fetched: {reason}", log=log)
    if "No matching distribution" in finished.stderr:
        what = f"the package registry has no {wanted.name} for this Python, or does not answer"
        return SourceError(f"{what}; check the name and `pip config list`", log=log)
    last = next((line for line in reversed(finished.stderr.splitlines()) if line.strip()), "no file came")
    return SourceError(f"{wanted.requirement} cannot be fetched: pip says: {last.strip()[:200]}", log=log)


def _elsewhere(version: str, versions: list[str]) -> str:
    """Where a CUTLASS release is that the registry does not have, as the end of a message."""
    newest = max(map(Version, versions))
    tag = "v" + ".".join([*version.split("."), "0", "0"][:3])  # 4.7 and the package 4.7.0.0 are v4.7.0
    return (
        f". The registry ends at {newest.major}.{newest.minor}.{newest.micro}; every release is in its repository: "
        f"cudal2-agent index add git+{CUTLASS_REPOSITORY}@{tag}, or name a checkout or an archive of it"
    )


def _versions(finished: CommandResult) -> list[str]:
    """The versions that pip lists."""
    found = _AVAILABLE.search(finished.stderr)
    return [] if found is None or found.group(1) == "none" else found.group(1).split(", ")


def _reason(finished: CommandResult) -> str:
    """Why pip could not ask the registry; empty if it could."""
    if "No module named pip" in finished.stderr:
        return f"this Python has no pip; run `{sys.executable} -m ensurepip`, or name a local wheel or folder"
    if "No space left on device" in finished.stderr:
        return "the disk is full; free some space"
    if _UNREACHABLE.search(finished.stderr):
        remedy = "check the network and `pip config list`, or name a wheel, an archive, a checkout or a folder"
        return f"the package registry cannot be reached; {remedy}"
    return ""


def _version_of(archive: Path) -> str:
    """The version in the file name of a wheel or source archive."""
    if archive.suffix == ".whl":
        return str(parse_wheel_filename(archive.name)[1])
    return str(parse_sdist_filename(archive.name)[1])
