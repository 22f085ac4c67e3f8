"""Reads what may be a stranger's, under limits: files, packed lines, JSON and records.

A reader that stays within them takes less than 1 GB of memory. Every refusal is a ValueError of one line. The limits are far
above what this product writes: a line of an export holds some ten thousand parts.
"""

import gzip
import tomllib
import zlib
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import IO, Any, TypeVar

from pydantic import BaseModel, ValidationError
from pydantic_core import from_json

MAX_FILE_BYTES = 256 << 20  # of a file that is read whole, and of what it unpacks to
MAX_LINE_BYTES = 64 << 20
MAX_PARTS = 500_000  # of a JSON text; a wrong record takes up to 800 bytes for each
MAX_SETTINGS_BYTES = 1 << 20
_GZIP = b"\x1f\x8b"
_LISTED_ERRORS = 1000
R = TypeVar("R", bound=BaseModel)


def read_file(path: Path, most_bytes: int = MAX_FILE_BYTES) -> bytes:
    """The content of a file. Raises: OSError; ValueError for one that is too large."""
    with path.open("rb") as file:
        return _bounded(file, most_bytes)


def read_packed(path: Path, most_bytes: int = MAX_FILE_BYTES) -> bytes:
    """The content of a file, which gzip may have packed. Raises: OSError; ValueError for one that is damaged or too large."""
    with opened(path) as file:
        return _bounded(file, most_bytes)


def read_lines(path: Path) -> Iterator[bytes]:
    """The lines of a file, which gzip may have packed, without their ends. Raises: OSError; ValueError as `read_packed`."""
    with opened(path) as file:
        while line := file.readline(MAX_LINE_BYTES + 1):
            if len(line) > MAX_LINE_BYTES:
                raise ValueError(f"a line is over {MAX_LINE_BYTES >> 20} MB")
            yield line.rstrip(b"\r\n")


@contextmanager
def opened(path: Path) -> Iterator[IO[bytes]]:
    """A file that is unpacked while it is read. Raises: OSError; ValueError for one that is damaged."""
    with path.open("rb") as file:
        packed = file.read(len(_GZIP)) == _GZIP if file.seekable() else False
        if file.seekable():
            file.seek(0)
        try:
            yield gzip.GzipFile(fileobj=file) if packed else file
        except (gzip.BadGzipFile, zlib.error, EOFError) as exc:
            raise ValueError(f"damaged or incomplete: {exc}") from exc


def _bounded(file: IO[bytes], most_bytes: int) -> bytes:
    content = file.read(most_bytes + 1)
    if len(content) > most_bytes:
        raise ValueError(f"more than {most_bytes:,} bytes")
    return content


def parse_json(text: bytes | str) -> Any:
    """A JSON value. Raises: ValueError, also for one with too many parts or too deep."""
    _count(text)
    return from_json(text)


def parse_record(kind: type[R], text: bytes | str) -> R:
    """Raises: ValueError for a text that is not such a record; as `parse_json`."""
    _count(text)
    try:
        return kind.model_validate_json(text)
    except ValidationError as exc:
        raise ValueError(first_error(exc)) from exc


def parse_toml(content: bytes) -> dict[str, Any]:
    """Raises: ValueError, also where it is too deep."""
    try:
        return tomllib.loads(content.decode())
    except RecursionError as exc:
        raise ValueError("it is nested too deep") from exc


def first_error(exc: ValidationError) -> str:
    """What is wrong with a record, in one line. A list of a million errors would take a gigabyte, and is not made."""
    if exc.error_count() > _LISTED_ERRORS:
        return f"{exc.error_count():,} values are missing or wrong"
    first = exc.errors(include_url=False, include_context=False, include_input=False)[0]
    where = ".".join(str(part) for part in first["loc"])
    return " ".join(f"{where}: {first['msg']}".removeprefix(": ").split())


def _count(text: bytes | str) -> None:
    parts = sum(text.count(mark) for mark in ((b",", b"[", b"{") if isinstance(text, bytes) else (",", "[", "{")))  # type: ignore[arg-type]
    if parts > MAX_PARTS:
        raise ValueError(f"a JSON text of {parts:,} parts; at most {MAX_PARTS:,} are read")
