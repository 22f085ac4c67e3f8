"""The text of a PDF, one section per page, under the headings of its outline."""

import io
import logging
from collections.abc import Iterator
from pathlib import PurePosixPath
from typing import Any

from pypdf import PdfReader
from pypdf.errors import PyPdfError

from cudal2_agent.contract.errors import SourceError
from cudal2_agent.contract.records.knowledge import SplitFile
from cudal2_agent.indexer.split.assembly import archs_in
from cudal2_agent.indexer.split.documents.sections import Heading, split_sections
from cudal2_agent.indexer.split.text_lines import read_lines

_DEPTH = 12  # maximum nesting of an outline

# pypdf logs every irregular object of a file, even if it can read the file.
logging.getLogger("pypdf").setLevel(logging.ERROR)


def split_pdf(path: str, data: bytes) -> SplitFile:
    """One piece per page. Raises: SourceError for a file that is encrypted, damaged or without text."""
    try:
        reader = PdfReader(io.BytesIO(data))
        if reader.is_encrypted and not reader.decrypt(""):
            raise SourceError(f"{path} is encrypted; save it without a password to index it")
        pages = [read_lines((page.extract_text() or "").encode("utf-8", "replace")) for page in reader.pages]
        outline = dict(_outline(reader, reader.outline, ()))
        title = str((reader.metadata and reader.metadata.title) or "").strip() or PurePosixPath(path).stem
    except SourceError:
        raise
    except (PyPdfError, ValueError, KeyError, TypeError, AttributeError, IndexError, RecursionError, OSError) as exc:
        raise SourceError(f"{path} cannot be read as PDF ({type(exc).__name__}: {exc}); is it complete?") from exc
    if not any(line.strip() for page in pages for line in page):
        raise SourceError(f"{path} contains no text; run text recognition on a scanned document first")
    lines: list[str] = []
    headings: list[Heading] = []
    above: tuple[str, ...] = ()
    for number, page in enumerate(pages):
        above = outline.get(number, above)
        symbol = " > ".join((title, *above, f"page {number + 1}"))
        headings.append(Heading(len(lines) + 1, len(lines), 1, symbol))
        lines.extend(page)
    return split_sections(path, data, lines, headings, title=title, archs=archs_in(path))


def _outline(reader: PdfReader, entries: list[Any], above: tuple[str, ...]) -> Iterator[tuple[int, tuple[str, ...]]]:
    """(page number from 0, headings from the top level down) of an outline, in order."""
    last = above
    for entry in entries:
        if isinstance(entry, list):
            if len(above) < _DEPTH:
                yield from _outline(reader, entry, last)
            continue
        last = (*above, " ".join(str(entry.title).split()))
        number = reader.get_destination_page_number(entry)
        if number is not None and number >= 0:
            yield number, last
