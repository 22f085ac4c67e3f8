"""Lines of a file or of stdin, plain or compressed with gzip or zstd; the content decides, not the name."""

import gzip
import io
import sys
import zlib
from collections.abc import Iterator
from contextlib import contextmanager
from typing import BinaryIO, cast

from cudal2_agent.contract.errors import UsageError
from cudal2_agent.store.compression import zstd

STDIN = "-"
MAX_LINE_BYTES = 64 * 1024**2
_ZSTD, _GZIP = b"\x28\xb5\x2f\xfd", b"\x1f\x8b"
_DAMAGED = (zstd.ZstdError, zlib.error, gzip.BadGzipFile, EOFError)


def lines_of(path: str) -> Iterator[bytes]:
    """The lines in order, without their line feeds. `path`: `-` is stdin.

    Raises: UsageError where the file cannot be read, is damaged or ends early, or has a line over `MAX_LINE_BYTES`.
    """
    try:
        with _opened(path) as file:
            while line := file.readline(MAX_LINE_BYTES + 1):
                if len(line) > MAX_LINE_BYTES:
                    raise UsageError(f"{shown(path)} has a line over {MAX_LINE_BYTES // 1024**2} MiB; it is not an export")
                yield line.rstrip(b"\r\n")
    except _DAMAGED as exc:
        raise UsageError(f"{shown(path)} is damaged or incomplete ({exc}); nothing was imported: fetch the file again") from exc
    except OSError as exc:
        raise UsageError(f"{shown(path)} cannot be read ({exc.strerror or exc}); check its path and permissions") from exc


def shown(path: str) -> str:
    """The name in a message; a byte of it that is not UTF-8 is shown as a question mark."""
    return "stdin" if path == STDIN else path.encode("utf-8", "replace").decode()


@contextmanager
def _opened(path: str) -> Iterator[BinaryIO]:
    if path == STDIN:
        yield _unpacked(sys.stdin.buffer)
        return
    with open(path, "rb") as file:
        yield _unpacked(file)


def _unpacked(file: BinaryIO) -> BinaryIO:
    buffered = file if isinstance(file, io.BufferedReader) else io.BufferedReader(cast(io.RawIOBase, file))
    start = buffered.peek(len(_ZSTD))
    if start.startswith(_ZSTD):
        return cast(BinaryIO, zstd.ZstdFile(buffered))
    return cast(BinaryIO, gzip.GzipFile(fileobj=buffered)) if start.startswith(_GZIP) else buffered
