"""Whether both sides speak the same records, and run the same sandbox."""

import hashlib
import json
from functools import cache
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path

import cudal2_agent.contract
import cudal2_agent.sandbox
from cudal2_agent.contract.errors import DeviceUnavailable

PROTOCOL = 1
OWN = "cudal2-agent"
RECORDS = ("calls.py", "far_answers.py", "spool_folder.py")  # of this room, besides those of the contract
_SOURCES = frozenset({".py", ".cuh", ".cu", ".hpp", ".cpp"})


@cache
def own_version() -> str:
    """The version of this product; "source" where it runs from a folder that is not installed."""
    try:
        return version(OWN)
    except PackageNotFoundError:
        return "source"


@cache
def records_hash() -> str:
    """Of all that decides how a record reads: the same for equal sources, whatever pydantic is installed."""
    folder = Path(cudal2_agent.contract.__file__ or "").parent
    return _hash([*folder.rglob("*.py"), *(Path(__file__).with_name(name) for name in RECORDS)])


@cache
def code_hash() -> str:
    """Of all that decides what an evaluation says."""
    folder = Path(cudal2_agent.sandbox.__file__ or "").parent
    return _hash([path for path in folder.rglob("*") if path.suffix in _SOURCES])


def _hash(files: list[Path]) -> str:
    content = hashlib.sha256()
    for path in sorted(files, key=lambda path: path.as_posix().rpartition("cudal2_agent/")[2]):
        content.update(hashlib.sha256(path.read_bytes()).digest())
    return content.hexdigest()[:12]


def require_same(text: bytes | str, where: str) -> None:
    """Raises: DeviceUnavailable, in one line, for a hello of another version, whatever records that has."""
    try:
        hello = json.loads(text)
    except ValueError:
        hello = None
    if not isinstance(hello, dict) or hello.get("message") != "hello":
        raise DeviceUnavailable(f"{where} answered, but is no worker of cudal2-agent: {text[:80]!r}")
    theirs = (hello.get("protocol"), hello.get("version"), hello.get("records"))
    ours = (PROTOCOL, own_version(), records_hash())
    if theirs == ours:
        return
    there, here = (f"{OWN} {of} (protocol {protocol}, records {records})"[:120] for protocol, of, records in (theirs, ours))
    raise DeviceUnavailable(f"{where} is {there}, this side is {here}; install the same wheel or commit on both")
