"""Splits a file into pieces, by a grammar if there is one for its suffix, else by windows of its text."""

import re
from collections.abc import Callable
from pathlib import PurePosixPath

from cudal2_agent.contract.records.knowledge import SplitFile
from cudal2_agent.indexer.split.assembly import SPLITTER, assemble
from cudal2_agent.indexer.split.cpp import cpp_outline
from cudal2_agent.indexer.split.documents.hypertext import split_html
from cudal2_agent.indexer.split.documents.markdown import split_markdown
from cudal2_agent.indexer.split.documents.restructured import split_restructured
from cudal2_agent.indexer.split.outline import Definition, with_families
from cudal2_agent.indexer.split.plain import split_plain
from cudal2_agent.indexer.split.python import python_outline
from cudal2_agent.indexer.split.spans import cut
from cudal2_agent.indexer.split.text_lines import read_lines

__all__ = ["SPLITTER", "split_file"]

_LICENCE = re.compile(
    r"\s*(/\*.*?\*/|(?://[^\n]*(?:\n|\Z))+|(?:#(?!\s*(?:include|pragma|if|ifdef|ifndef|define)\b)[^\n]*(?:\n|\Z))+)", re.DOTALL
)


def split_file(path: str, data: bytes) -> SplitFile:
    """The pieces of a file. Raises: SourceError for an unreadable document."""
    return _SPLITS.get(PurePosixPath(path).suffix.lower(), split_plain)(path, data)


def _split_cpp(path: str, data: bytes) -> SplitFile:
    lines = read_lines(data)
    return _split_code(path, data, lines, cpp_outline("\n".join(lines)))


def _split_python(path: str, data: bytes) -> SplitFile:
    lines = read_lines(data)
    try:
        outline = python_outline(path, "\n".join(lines), lines)
    except SyntaxError:
        return split_plain(path, data)
    return _split_code(path, data, lines, outline)


def _split_pdf(path: str, data: bytes) -> SplitFile:
    from cudal2_agent.indexer.split.documents.pdf import split_pdf  # takes 0.1 s per process, and few processes need it

    return split_pdf(path, data)


def _split_code(path: str, data: bytes, lines: list[str], outline: tuple[Definition, ...]) -> SplitFile:
    start = _licence_lines("\n".join(lines)) + 1
    below = tuple(definition for definition in with_families(outline) if definition.end >= start)
    return assemble(path, data, lines, cut(below, lines, start))


def _licence_lines(text: str) -> int:
    """The number of licence lines at the top of a file."""
    match = _LICENCE.match(text)
    if match is None or not re.search(r"copyright|SPDX-License", match[1], re.IGNORECASE):
        return 0
    ends_line = match[1].endswith("\n") or text[match.end() : match.end() + 1] in ("\n", "")
    return text.count("\n", 0, match.end()) + (ends_line and not match[1].endswith("\n"))


_SPLITS: dict[str, Callable[[str, bytes], SplitFile]] = {
    **dict.fromkeys((".h", ".hpp", ".hh", ".hxx", ".cuh", ".cu", ".inl", ".inc", ".cpp", ".cc", ".cxx", ".ipp"), _split_cpp),
    **dict.fromkeys((".py", ".pyi"), _split_python),
    **dict.fromkeys((".md", ".markdown"), split_markdown),
    **dict.fromkeys((".html", ".htm", ".xhtml"), split_html),
    ".rst": split_restructured,
    ".pdf": _split_pdf,
}
