"""Reads the files of a tree and identifies the version of each file with text."""

import hashlib
import os
from collections.abc import Iterator
from pathlib import Path

from cudal2_agent.contract.base import Record
from cudal2_agent.contract.errors import SourceError
from cudal2_agent.contract.events import Emit, IndexProgress
from cudal2_agent.indexer.listing import Skips
from cudal2_agent.indexer.tree import Tree

MAX_BYTES = 8 << 20
MAX_PDF_BYTES = 64 << 20  # most bytes of a PDF are pictures, and its text is far shorter
_SAMPLE = 1 << 16
_TEXT_BYTES = bytes({7, 8, 9, 10, 11, 12, 13, 27} | set(range(0x20, 0x7F)) | set(range(0x80, 0x100)))
_HIGH_BYTES = bytes(range(0x80, 0x100))
_MAX_NON_TEXT = 0.1
_MAX_HIGH_BYTES = 0.3  # for a file that is not UTF-8; text in another 8-bit encoding has fewer
_PROGRESS_EVERY = 50


class FileVersion(Record):
    """A file and the hash of its content."""

    path: str
    sha256: str
    size: int


def read_files(tree: Tree, emit: Emit) -> tuple[list[FileVersion], int]:
    """The files that can be split, in order, and the number of skipped ones, which notices report.

    Raises: SourceError if no file can be split.
    """
    skips = Skips()
    found = list(_read(tree, skips, emit))
    skips.report(tree.name, emit)
    if not found:
        raise SourceError(f"{tree.origin}: none of its {len(tree.files)} files contains text that can be indexed")
    return found, len(tree.files) - len(found)


def load(root: Path, path: str) -> bytes:
    """A file's bytes, up to one more than the limit. Raises: OSError."""
    with open(os.path.join(root, path), "rb") as opened:
        return opened.read(_limit(path) + 1)


def _read(tree: Tree, skips: Skips, emit: Emit) -> Iterator[FileVersion]:
    for index, path in enumerate(tree.files):
        if index % _PROGRESS_EVERY == 0:
            emit(IndexProgress(release=tree.name, stage="read", done=index, total=len(tree.files)))
        try:
            data = load(tree.root, path)
        except OSError as exc:
            skips.add(f"skipped, cannot be read: {exc.strerror}", path)
            continue
        if len(data) > _limit(path):
            skips.add(f"skipped, larger than {_limit(path) >> 20} MB", path)
        elif not _is_pdf(path) and _is_binary(data):
            skips.add("skipped, binary content", path)
        else:
            if not _is_pdf(path) and not _is_utf8(data):
                skips.add("invalid UTF-8 read with replacement characters", path)
            yield FileVersion(path=path, sha256=hashlib.sha256(data).hexdigest(), size=len(data))
    emit(IndexProgress(release=tree.name, stage="read", done=len(tree.files), total=len(tree.files)))


def _is_pdf(path: str) -> bool:
    return path.lower().endswith(".pdf")


def _limit(path: str) -> int:
    return MAX_PDF_BYTES if _is_pdf(path) else MAX_BYTES


def _is_binary(data: bytes) -> bool:
    sample = data[:_SAMPLE]
    if b"\0" in data or len(sample.translate(None, _TEXT_BYTES)) > _MAX_NON_TEXT * len(sample):
        return True
    return len(sample) - len(sample.translate(None, _HIGH_BYTES)) > _MAX_HIGH_BYTES * len(sample) and not _is_utf8(data)


def _is_utf8(data: bytes) -> bool:
    try:
        data.decode()
    except UnicodeDecodeError:
        return False
    return True
