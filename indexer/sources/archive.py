"""Unpacks zip files, wheels and tar files under limits.

Covered: members outside the tree (`../`, absolute, drive letters), links that leave it, devices, bombs (limits on members,
bytes and expansion are checked while unpacking, regardless of the headers), headers and dictionaries of gigabytes, damaged,
truncated and encrypted archives.
"""

import bz2
import contextlib
import errno
import gzip
import lzma
import posixpath
import re
import shutil
import stat
import struct
import tarfile
import zipfile
import zlib
from collections.abc import Callable
from pathlib import Path
from typing import IO, Any, Protocol, Self, cast

from cudal2_agent.contract.base import Record
from cudal2_agent.contract.errors import SourceError
from cudal2_agent.indexer.listing import is_wanted, printable

_XZ_BYTES = 256 << 20  # of memory that a stream may ask for; `xz -9` asks for 65 MB
_HEADER_BYTES = 1 << 20  # of a long name or of extended headers, which tarfile holds in memory
_HEADERS = frozenset(
    {tarfile.XHDTYPE, tarfile.XGLTYPE, tarfile.SOLARIS_XHDTYPE, tarfile.GNUTYPE_LONGNAME, tarfile.GNUTYPE_LONGLINK}
)


class _Xz:
    """The unpacked bytes of an xz file, under a limit of memory, which `lzma.LZMAFile` has not."""

    def __init__(self, raw: IO[bytes]) -> None:
        self._raw, self._stream = raw, self._new()

    def read(self, size: int = -1, /) -> bytes:
        data = b""
        while not data:
            if self._stream.eof:
                rest = (self._stream.unused_data or self._raw.read(_BLOCK)).lstrip(b"\0")
                if not rest:
                    return b""
                self._stream = self._new()
            else:
                rest = self._raw.read(_BLOCK) if self._stream.needs_input else b""
                if self._stream.needs_input and not rest:
                    raise EOFError("the stream ends early")
            data = self._stream.decompress(rest, size)
        return data

    def __enter__(self) -> "_Xz":
        return self

    def __exit__(self, *_: object) -> None:
        pass

    @staticmethod
    def _new() -> lzma.LZMADecompressor:
        return lzma.LZMADecompressor(memlimit=_XZ_BYTES)


class _BoundedHeader(tarfile.TarInfo):
    """A header whose extensions are of sensible size."""

    @classmethod
    def frombuf(cls, buf: bytes | bytearray, encoding: str, errors: str) -> Self:
        found = super().frombuf(buf, encoding, errors)
        if found.type in _HEADERS and found.size > _HEADER_BYTES:
            raise tarfile.ReadError(f"a header of {found.size:,} bytes")
        return found


_OPENERS: dict[str, Callable[[Any], Any]] = {
    ".tar": lambda raw: raw,
    ".tar.gz": lambda raw: gzip.GzipFile(fileobj=raw),
    ".tgz": lambda raw: gzip.GzipFile(fileobj=raw),
    ".tar.bz2": bz2.BZ2File,
    ".tbz2": bz2.BZ2File,
    ".tar.xz": _Xz,
    ".txz": _Xz,
}
_ZIPS = (".zip", ".whl")
SUFFIXES = (*_OPENERS, *_ZIPS)
_BLOCK = 1 << 20
_MAX_LINK_BYTES = 4096
_DAMAGE = (
    zipfile.BadZipFile,
    tarfile.TarError,
    zlib.error,
    lzma.LZMAError,
    struct.error,
    EOFError,
    RuntimeError,  # zipfile: encrypted, or an unsupported compression method
    ValueError,  # invalid values in a header
    OverflowError,
)


class ArchiveLimits(Record):
    """Limits on what an archive unpacks to. Expansion is checked above `free_bytes`: a small repetitive text is no bomb."""

    members: int = 200_000
    bytes: int = 4 << 30
    expansion: int = 200
    free_bytes: int = 64 << 20


class _Readable(Protocol):
    def read(self, size: int = -1, /) -> bytes: ...


class _UnpackMeter:
    """Counts what an archive unpacks to, and stops at a limit."""

    def __init__(self, archive: Path, limits: ArchiveLimits) -> None:
        self._archive = archive
        self._limits = limits
        self._packed = max(archive.stat().st_size, 1)
        self._members = 0
        self._bytes = 0

    def member(self) -> None:
        self._members += 1
        if self._members > self._limits.members:
            raise self._refusal(f"more than {self._limits.members:,} members")

    def count(self, size: int) -> None:
        self._bytes += size
        if self._bytes > self._limits.bytes:
            raise self._refusal(f"more than {self._limits.bytes >> 20:,} MB")
        if self._bytes > self._limits.free_bytes and self._bytes > self._limits.expansion * self._packed:
            raise self._refusal(f"more than {self._limits.expansion} times its size")

    def _refusal(self, what: str) -> SourceError:
        return SourceError(f"{self._archive} unpacks to {what}; if you trust it, unpack it yourself and name the folder")


class _Metered:
    """A stream whose reads are counted."""

    def __init__(self, stream: _Readable, meter: _UnpackMeter) -> None:
        self._stream = stream
        self._meter = meter

    def read(self, size: int = -1, /) -> bytes:
        data = self._stream.read(size)
        self._meter.count(len(data))
        return data


def archive_suffix(path: Path) -> str:
    """The suffix that determines how to unpack a file; empty if the file is not an archive."""
    return max((suffix for suffix in SUFFIXES if path.name.lower().endswith(suffix)), key=len, default="")


def unpack(archive: Path, into: Path, limits: ArchiveLimits | None = None) -> None:
    """Write the members that can be split under `into`. Raises: SourceError; the caller then deletes `into`."""
    try:
        into.mkdir(parents=True, exist_ok=True)
        meter = _UnpackMeter(archive, limits or ArchiveLimits())
        suffix = archive_suffix(archive)
        if suffix in _ZIPS:
            _unzip(archive, into, meter)
        else:
            with archive.open("rb") as raw, _OPENERS[suffix](raw) as stream:
                _untar(archive, stream, into, meter)
    except _DAMAGE as exc:
        raise SourceError(f"{archive} cannot be unpacked: {exc or type(exc).__name__}; is it complete?") from exc
    except OSError as exc:
        remedy = "free some space" if exc.errno == errno.ENOSPC else "is it complete and readable?"
        raise SourceError(f"{archive} cannot be unpacked: {exc.strerror or exc}; {remedy}") from exc


def _unzip(archive: Path, into: Path, meter: _UnpackMeter) -> None:
    with zipfile.ZipFile(archive) as opened:
        for member in opened.infolist():
            meter.member()
            name = _safe(archive, member.filename)
            mode = member.external_attr >> 16
            if member.compress_type == zipfile.ZIP_LZMA:  # its dictionary has no limit
                raise ValueError(f"member {printable(name)} is compressed by LZMA")
            if stat.S_ISLNK(mode):
                with opened.open(member) as link:
                    _check_link(archive, name, link.read(_MAX_LINK_BYTES).decode("utf-8", "replace"))
            elif stat.S_IFMT(mode) not in (0, stat.S_IFREG, stat.S_IFDIR):
                raise _special(archive, name)
            elif not member.is_dir() and is_wanted(name):
                with opened.open(member) as source:
                    _write(_Metered(source, meter), into / name)


def _untar(archive: Path, stream: IO[bytes], into: Path, meter: _UnpackMeter) -> None:
    """Unpack in one pass without seeking. Every byte counts, also those of skipped members and headers."""
    with tarfile.open(fileobj=cast(IO[bytes], _Metered(stream, meter)), mode="r|", tarinfo=_BoundedHeader) as opened:
        for member in opened:
            meter.member()
            name = _safe(archive, member.name)
            if member.issym():
                _check_link(archive, name, member.linkname)
            elif member.islnk():
                _copy(into / _safe(archive, member.linkname), into / name)
            elif not (member.isreg() or member.isdir()):
                raise _special(archive, name)
            elif member.isreg() and is_wanted(name):
                source = opened.extractfile(member)
                # A sparse member is short in the archive and long when read, so its bytes are counted again.
                _write(_Metered(source, meter) if member.issparse() else source, into / name) if source else None


def _safe(archive: Path, name: str) -> str:
    """The member's path under the tree. Raises: SourceError for a path outside the tree, ValueError for an empty name."""
    if not name:
        raise ValueError("a member has no name")
    slashed = name.replace("\\", "/")
    if "\0" in name or slashed.startswith("/") or re.match(r"[A-Za-z]:", name) or ".." in slashed.split("/"):
        raise SourceError(
            f"{archive}: member {printable(name)} would be written outside its folder; refused, nothing was indexed"
        )
    return posixpath.normpath(name)


def _check_link(archive: Path, name: str, target: str) -> None:
    """Refuse a link that leaves the tree. Other links are not created, since their targets are indexed anyway."""
    inside = posixpath.normpath(posixpath.join(posixpath.dirname(name), target))
    if target.startswith(("/", "\\")) or inside == ".." or inside.startswith("../"):
        raise SourceError(f"{archive}: link {printable(name)} leaves its folder; refused, nothing was indexed")


def _special(archive: Path, name: str) -> SourceError:
    return SourceError(f"{archive}: member {printable(name)} is a device or a pipe; refused, nothing was indexed")


def _write(source: _Readable, target: Path) -> None:
    target.parent.mkdir(parents=True, exist_ok=True)
    with target.open("wb") as sink:
        while block := source.read(_BLOCK):
            sink.write(block)


def _copy(source: Path, target: Path) -> None:
    """Copy the file of a hard link, if its first name can be split as well."""
    if source.is_file() and is_wanted(target.name):
        target.parent.mkdir(parents=True, exist_ok=True)
        with contextlib.suppress(shutil.SameFileError):
            shutil.copyfile(source, target)


def stem(path: Path) -> str:
    """An archive's name without its suffix."""
    return path.name[: len(path.name) - len(archive_suffix(path))]


def version_in(title: str) -> str:
    """`1.2.3` of `name-1.2.3`; empty for a title without a version."""
    found = re.search(r"[-_]v?(\d+(?:\.[\w+]+)+)$", title)
    return found.group(1) if found else ""
