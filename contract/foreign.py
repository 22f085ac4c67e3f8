"""Reads what may be a stranger's, under limits: files, packed lines, JSON and records.

A reader that stays within them takes less than 1 GB of memory. Every refusal is a ValueError of one line. The limits are far
above what this product writes: a line of an export holds some ten thousand parts.
"""

import codecs
import gzip
import json
import re
import tomllib
import zlib
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import IO, Any, TypeVar, cast

from pydantic import BaseModel, ValidationError
from pydantic_core import from_json

MAX_FILE_BYTES = 64 << 20  # of a file of records, and of what it unpacks to; those that ship unpack to 3 MB at most
MAX_LINE_BYTES = 32 << 20  # a character may take 4 bytes, and a record and its packing hold a text several times
MAX_PARTS = 500_000  # of a JSON text; a wrong record takes up to 800 bytes for each
MAX_SETTINGS_BYTES = 1 << 20
MAX_VALUE_CHARS = 8 << 20  # of a value within a text that is read in pieces
_BLOCK = 1 << 18
_NO_SPACE = re.compile(r"[^ \t\r\n]")
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
    left = MAX_FILE_BYTES
    with opened(path) as file:
        while line := file.readline(left + 1):
            left -= len(line)
            if left < 0:
                raise ValueError(f"more than {MAX_FILE_BYTES:,} bytes")
            yield line.rstrip(b"\r\n")


@contextmanager
def opened(path: Path) -> Iterator[IO[bytes]]:
    """A file that is unpacked while it is read. Raises: OSError; ValueError for one that is damaged."""
    with path.open("rb") as file:
        packed = file.read(len(_GZIP)) == _GZIP if file.seekable() else False
        if file.seekable():
            file.seek(0)
        try:
            yield cast(IO[bytes], gzip.GzipFile(fileobj=file)) if packed else file
        except (gzip.BadGzipFile, zlib.error, EOFError) as exc:
            raise ValueError(f"damaged or incomplete: {exc}") from exc


def _bounded(file: IO[bytes], most_bytes: int) -> bytes:
    content = file.read(most_bytes + 1)
    if len(content) > most_bytes:
        raise ValueError(f"more than {most_bytes:,} bytes")
    return content


def parse_json(text: bytes | str) -> Any:
    """A JSON value. Raises: ValueError, also for one with too many parts or too deep."""
    return from_json(_counted(text))


def parse_record(kind: type[R], text: bytes | str) -> R:
    """Raises: ValueError for a text that is not such a record; as `parse_json`."""
    content = _counted(text)
    try:
        return kind.model_validate_json(content)
    except ValidationError as exc:
        raise ValueError(first_error(exc)) from exc


def members(stream: IO[bytes], listed: str) -> Iterator[tuple[str, Any]]:
    """The members of a JSON object by name, in order; of a list named `listed` each element by itself.

    Only what is being read is in memory. Raises: ValueError, also for a value that is too large.
    """
    text = _Text(stream)
    text.take("{")
    while not text.skip("}"):
        name = text.value()
        text.take(":")
        if name != listed:
            yield str(name), text.value()
        else:
            text.take("[")
            while not text.skip("]"):
                yield listed, text.value()
                if not text.skip(","):
                    text.take("]")
                    break
        if not text.skip(","):
            text.take("}")
            return


class _Text:
    """A JSON text that is read a block at a time."""

    def __init__(self, stream: IO[bytes]) -> None:
        self._stream, self._decoder, self._json = stream, codecs.getincrementaldecoder("utf-8")(), json.JSONDecoder()
        self._held, self._at, self._ended = "", 0, False

    def value(self) -> Any:
        """The next value, as a whole."""
        while True:
            self._next()
            try:
                value, end = self._json.raw_decode(self._held, self._at)
            except RecursionError as exc:
                raise ValueError("it is nested too deep") from exc
            except ValueError:
                if self._ended:
                    raise
            else:
                if end < len(self._held) or self._ended:  # a number may go on
                    self._at = end
                    return value
            self._fill()

    def skip(self, mark: str) -> bool:
        """Whether a mark comes next; it is passed."""
        found = self._next() == mark
        self._at += found
        return found

    def take(self, mark: str) -> None:
        if not self.skip(mark):
            raise ValueError(f"expected {mark!r}")

    def _next(self) -> str:
        """The next character that is no space; empty at the end."""
        while True:
            if found := _NO_SPACE.search(self._held, self._at):
                self._at = found.start()
                return found[0]
            self._at = len(self._held)
            if self._ended:
                return ""
            self._fill()

    def _fill(self) -> None:
        self._held, self._at = self._held[self._at :], 0
        if len(self._held) > MAX_VALUE_CHARS:
            raise ValueError(f"a value of more than {MAX_VALUE_CHARS:,} characters")
        block = self._stream.read(max(_BLOCK, len(self._held)))
        self._ended = not block
        self._held += self._decoder.decode(block, final=self._ended)


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


def _counted(text: bytes | str) -> bytes:
    """Raises: ValueError for a text with too many parts."""
    content = text.encode() if isinstance(text, str) else text
    parts = sum(content.count(mark) for mark in (b",", b"[", b"{"))
    if parts > MAX_PARTS:
        raise ValueError(f"a JSON text of {parts:,} parts; at most {MAX_PARTS:,} are read")
    return content
