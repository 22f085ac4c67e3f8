"""The files of a kernel library.

As a folder: `manifest.json`, `entries.jsonl` with one `LibraryEntry` or `StoredAlgorithm` per line, and where it has kernels,
`cubins/SHA256.cubin` and `cubins/SHA256-TASK-SMS.json`, a `PreparedKernel`. Packed: one gzip file `*.jsonl.gz` whose first line
is the manifest; it has no cubins. Entries stand in the order of the manifest's ids, then the algorithms in that of theirs, as
canonical JSON, whose hash is the id. Version 1 of the format has no algorithms, version 2 no matrix products without a gain.
"""

import hashlib
from pathlib import Path
from typing import Any

from pydantic import ValidationError

from cudal2_agent.contract.base import canonical_json
from cudal2_agent.contract.errors import LibraryError, UsageError
from cudal2_agent.contract.foreign import first_error, parse_json, read_file, read_packed
from cudal2_agent.contract.records.library import LibraryEntry, LibraryManifest, StoredAlgorithm
from cudal2_agent.contract.records.task import GemmTask

MANIFEST, ENTRIES, CUBINS, PACKED = "manifest.json", "entries.jsonl", "cubins", ".jsonl.gz"
ID_CHARS = 32
_FORMAT = LibraryManifest.model_fields["format"].default
_VERSIONS = (1, 2, 3, 4, 5, 6, 7)
_AGAIN = "build it again with `cudal2-agent library build`, or copy it anew"


def read_library_files(path: Path) -> tuple[LibraryManifest, list[dict[str, Any]]]:
    """The manifest of a library, and its entries and algorithms as plain JSON, in the order of the manifest's ids.

    Each has the id that the manifest names; its fields are not validated.
    Raises: UsageError where there is no library; LibraryError where it is damaged or of another version.
    """
    first, lines = _texts(path)
    manifest = _manifest(path, first)
    ids = (*manifest.entries, *manifest.algorithms)
    if len(lines) != len(ids):
        raise LibraryError(f"{path} has {len(lines)} entries and its manifest names {len(ids)}; {_AGAIN}")
    pairs = zip(lines, ids, strict=True)
    return manifest, [_entry(path, number, line, id_) for number, (line, id_) in enumerate(pairs, 1)]


def line_of(entry: LibraryEntry | StoredAlgorithm) -> str:
    """An entry as it stands in a library."""
    return canonical_json(entry.model_dump(mode="json"))


def cubin_name(cubin_sha256: str) -> str:
    return f"{cubin_sha256}.cubin"


def plan_name(cubin_sha256: str, task: GemmTask, sms: int) -> str:
    """The plan of a kernel for a task and a number of SMs."""
    return f"{cubin_sha256}-{task.id}-{sms}.json"


def _texts(path: Path) -> tuple[str, list[str]]:
    """The manifest's text, and a text per entry."""
    if not path.exists():
        raise UsageError(f"{path} does not exist; name a library: a folder with {MANIFEST}, or a file *{PACKED}")
    try:
        if path.is_dir():
            return read_file(path / MANIFEST).decode(), read_file(path / ENTRIES).decode().splitlines()
        lines = read_packed(path).decode().splitlines()
    except FileNotFoundError as exc:
        raise LibraryError(f"{path} is not a kernel library: it has no {Path(exc.filename).name}; {_AGAIN}") from exc
    except (OSError, ValueError) as exc:
        raise LibraryError(f"{path} is damaged or not a kernel library ({exc}); {_AGAIN}") from exc
    if not lines:
        raise LibraryError(f"{path} is empty; {_AGAIN}")
    return lines[0], lines[1:]


def _manifest(path: Path, text: str) -> LibraryManifest:
    try:
        record = parse_json(text)
    except ValueError as exc:
        raise LibraryError(f"{path} is damaged or not a kernel library: its manifest is not JSON ({exc}); {_AGAIN}") from exc
    if not isinstance(record, dict) or record.get("format") != _FORMAT:
        raise LibraryError(f"{path} is not a kernel library: its first record has no format {_FORMAT!r}")
    if record.get("version") not in _VERSIONS:
        raise LibraryError(
            f"{path} has version {record.get('version')} of the format and this product reads up to {_VERSIONS[-1]}; "
            "install the product that it was built with, or build it again"
        )
    try:
        return LibraryManifest.model_validate(record)
    except ValidationError as exc:
        raise LibraryError(f"the manifest of {path} is damaged: {first_error(exc)}; {_AGAIN}") from exc


def _entry(path: Path, number: int, line: str, id_: str) -> dict[str, Any]:
    if hashlib.sha256(line.encode()).hexdigest()[:ID_CHARS] != id_:
        raise LibraryError(f"entry {number} of {path} is damaged, or not the one that the manifest names ({id_}); {_AGAIN}")
    try:
        record = parse_json(line)
    except ValueError as exc:
        raise LibraryError(f"entry {number} of {path} is not JSON ({exc}); {_AGAIN}") from exc
    if not isinstance(record, dict):
        raise LibraryError(f"entry {number} of {path} is not a library entry; {_AGAIN}")
    return record
