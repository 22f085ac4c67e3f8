"""Writes a library as a folder, with its built kernels where wanted, or packed into one file. Equal entries give equal bytes.

Covered: a process killed at any moment, and several builds of one folder at once. A folder has two files: a build that is
killed between them leaves a library that says so when it is opened, and the next build completes it.
"""

import gzip
import hashlib
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from types import MappingProxyType
from typing import Literal, NamedTuple

from filelock import FileLock

from cudal2 import __version__
from cudal2.library.library_form import CUBINS, ENTRIES, MANIFEST, PACKED, cubin_name, line_of, plan_name
from cudal2.library.prepared_kernels import PreparedKernels
from cudal2_agent.agent.library.entry_choice import EntryChoice, LeftOut
from cudal2_agent.agent.library.preparing import library_cache, prepare, sms_for
from cudal2_agent.contract.errors import UsageError
from cudal2_agent.contract.records.library import LibraryEntry, LibraryManifest, MRange, StoredAlgorithm
from cudal2_agent.contract.settings.settings import Settings
from cudal2_agent.contract.whole_file import whole_file

_OURS = frozenset({MANIFEST, ENTRIES, CUBINS})
_LOCK = ".building.lock"
_PACKAGE = "cudal2-agent"
NOT_BUILT = "it cannot be built here"


def manifest_of(
    entries: tuple[LibraryEntry, ...],
    algorithms: tuple[StoredAlgorithm, ...] = (),
    no_faster: tuple[str, ...] = (),
    ranges: tuple[MRange, ...] = (),
    *,
    name: str,
    chip: str,
) -> LibraryManifest:
    """The manifest of entries and of algorithms, each in the order of their ids. It is dated by the newest measurement."""
    return LibraryManifest(
        version=_version(entries, algorithms, no_faster, ranges),
        name=name,
        chip=chip,
        arch=(entries or algorithms)[0].task.arch.value,
        entries=tuple(entry.id for entry in entries),
        algorithms=tuple(one.id for one in algorithms),
        no_faster=no_faster,
        ranges=ranges,
        product=f"{_PACKAGE} {__version__}",
        created=max((*(entry.evaluation.measured for entry in entries), *(one.measured for one in algorithms))),
    )


def _version(
    entries: tuple[LibraryEntry, ...],
    algorithms: tuple[StoredAlgorithm, ...],
    no_faster: tuple[str, ...],
    ranges: tuple[MRange, ...],
) -> Literal[1, 2, 3, 4, 5, 6, 7]:
    """The first version of the format that has all of this."""
    if any(entry.task.gated for entry in entries):
        return 7
    if any(entry.task.activation is not None for entry in entries):
        return 6
    if ranges:
        return 5
    if any(entry.task.bias for entry in entries):
        return 4
    return 3 if no_faster else 2 if algorithms else 1


def write_library(
    out: Path,
    manifest: LibraryManifest,
    held: tuple[LibraryEntry | StoredAlgorithm, ...],
    cubins: Mapping[str, bytes] = MappingProxyType({}),
) -> None:
    """Write a packed file where the name ends in .jsonl.gz, else a folder. An earlier library there is replaced.

    `held`: in the order of the manifest. `cubins`: kernels and plans by name, which are written before the entries that name
    them; a packed file has none.
    Raises: UsageError where the place is not writable, or holds something else.
    """
    lines = "".join(f"{line_of(one)}\n" for one in held).encode()
    # Readers of an earlier version know no fields of a later one.
    later = {field for field in ("algorithms", "no_faster", "ranges") if not getattr(manifest, field)}
    try:
        if out.name.endswith(PACKED):
            out.parent.mkdir(parents=True, exist_ok=True)
            _write(out, gzip.compress(manifest.model_dump_json(exclude=later).encode() + b"\n" + lines, mtime=0))
        else:
            _require_ours(out)
            with _locked(out):
                _write_cubins(out / CUBINS, cubins)
                _write(out / ENTRIES, lines)
                _write(out / MANIFEST, manifest.model_dump_json(indent=1, exclude=later).encode() + b"\n")
                _keep_only(out / CUBINS, cubins)
    except OSError as exc:
        raise UsageError(f"library {out} cannot be written ({exc.strerror or exc}); choose another place with --out") from exc


def _require_ours(out: Path) -> None:
    if not out.exists():
        return
    if not out.is_dir():
        raise UsageError(f"{out} is a file; name a folder, or a file *{PACKED}, with --out")
    other = sorted(file.name for file in out.iterdir() if file.name not in _OURS and not file.name.startswith("."))
    if other:
        raise UsageError(f"folder {out} holds {other[0]!r}, so it is not a library; choose another with --out")


@contextmanager
def _locked(out: Path) -> Iterator[None]:
    """The folder for one build at a time, without what killed builds left."""
    out.mkdir(parents=True, exist_ok=True)
    with FileLock(out / _LOCK):
        for name in (ENTRIES, MANIFEST):
            for left in out.glob(f".{name}.*"):
                left.unlink(missing_ok=True)
        yield


def _write_cubins(folder: Path, cubins: Mapping[str, bytes]) -> None:
    for name, content in cubins.items():
        folder.mkdir(exist_ok=True)
        if not (folder / name).is_file() or (folder / name).read_bytes() != content:
            _write(folder / name, content)


def _keep_only(folder: Path, cubins: Mapping[str, bytes]) -> None:
    """Without the kernels of an earlier library, and what killed builds left."""
    for file in folder.iterdir() if folder.is_dir() else ():
        if file.name not in cubins:
            file.unlink()


def _write(path: Path, content: bytes) -> None:
    with whole_file(path) as temporary:
        temporary.write_bytes(content)


class ChoiceWithCubins(NamedTuple):
    """`files`: kernels and plans by name, for the folder of cubins."""

    choice: EntryChoice
    files: dict[str, bytes]


def with_cubins(choice: EntryChoice, settings: Settings) -> ChoiceWithCubins:
    """The entries with the hashes of their kernels, which come from the cache or are built now.

    Raises: CompilerMissing, MachineError, WorkerError.
    """
    if not choice.entries:
        return ChoiceWithCubins(choice, {})
    sms, kernels = sms_for(choice.entries[0].task.arch), PreparedKernels(library_cache(settings))
    failed = {one.id: one.message for one in prepare(choice.entries, settings, sms) if one.status == "failed"}
    left_out = [LeftOut(one.task, NOT_BUILT, failed[one.id]) for one in choice.entries if one.id in failed]
    entries, files = list[LibraryEntry](), dict[str, bytes]()
    for entry in choice.entries:
        if entry.id not in failed:
            content, plan = kernels.cubin_path(entry).read_bytes(), kernels.plan_path(entry, sms).read_bytes()
            sha256 = hashlib.sha256(content).hexdigest()
            files[cubin_name(sha256)], files[plan_name(sha256, entry.task, sms)] = content, plan
            entries.append(entry.model_copy(update={"cubin_sha256": sha256}))
    ordered = tuple(sorted(entries, key=lambda entry: entry.id))
    return ChoiceWithCubins(EntryChoice(ordered, (*choice.left_out, *left_out)), files)


def built_kernels(library: Path) -> dict[str, bytes]:
    """The kernels and plans that lie in a library's folder, by name; nothing for a packed file."""
    folder = library / CUBINS
    return {file.name: file.read_bytes() for file in sorted(folder.iterdir())} if folder.is_dir() else {}
