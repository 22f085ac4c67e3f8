"""A file as pieces: by grammar where there is one for it, by its text where not."""

import re
from pathlib import PurePosixPath

from contract.knowledge import SplitFile
from indexer.split.assembly import SPLITTER, assemble
from indexer.split.cpp import cpp_outline
from indexer.split.families import with_families
from indexer.split.lines import read_lines
from indexer.split.plain import split_plain
from indexer.split.spans import cut

__all__ = ["SPLITTER", "split_file"]

CPP = frozenset({".h", ".hpp", ".hh", ".hxx", ".cuh", ".cu", ".inl", ".inc", ".cpp", ".cc", ".cxx", ".ipp"})
_LICENCE = re.compile(r"\s*(/\*.*?\*/|(?://[^\n]*\n)+)", re.DOTALL)


def split_file(path: str, data: bytes) -> SplitFile:
    """The pieces of a file."""
    if PurePosixPath(path).suffix.lower() in CPP:
        return _split_cpp(path, data)
    return split_plain(path, data)


def _split_cpp(path: str, data: bytes) -> SplitFile:
    lines = read_lines(data)
    text = "\n".join(lines)
    start = _licence_end(text) + 1
    outline = tuple(d for d in with_families(cpp_outline(text)) if d.end >= start)
    return assemble(path, data, lines, cut(outline, lines, start))


def _licence_end(text: str) -> int:
    """Number of lines that the licence takes at the top of a file."""
    match = _LICENCE.match(text)
    if match is None or not re.search(r"copyright|licen[cs]e", match[1], re.IGNORECASE):
        return 0
    return text.count("\n", 0, match.end()) + (not match[1].endswith("\n"))
