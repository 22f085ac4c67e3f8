"""Sections of reStructuredText, by the adornment lines below (and above) their titles."""

import re
from collections.abc import Callable, Iterator
from pathlib import PurePosixPath

from cudal2_agent.contract.records.knowledge import SplitFile
from cudal2_agent.indexer.split.assembly import archs_in
from cudal2_agent.indexer.split.documents.sections import Heading, split_sections
from cudal2_agent.indexer.split.text_lines import read_lines

_ADORNMENT = re.compile(r"([!-/:-@\[-`{-~])\1{2,}\s*")


def split_restructured(path: str, data: bytes) -> SplitFile:
    """One piece per section."""
    lines = read_lines(data)
    return split_sections(
        path, data, lines, _headings(lines), title=PurePosixPath(path).stem, archs=archs_in(path), may_cut=_may_cut(lines)
    )


def _may_cut(lines: list[str]) -> Callable[[int], bool]:
    """Not inside indented text, which is code or the body of a directive."""
    return lambda line: not lines[line][:1].isspace() if line < len(lines) else True


def _headings(lines: list[str]) -> Iterator[Heading]:
    """The titles in order. A new style of adornment is one level deeper than the earlier ones."""
    styles: list[tuple[str, bool]] = []
    for index in range(1, len(lines)):
        title = lines[index - 1]
        under = _ADORNMENT.fullmatch(lines[index])
        if not under or not _is_title(title) or len(lines[index].rstrip()) < len(title.rstrip()):
            continue
        over = index >= 2 and lines[index - 2].rstrip() == lines[index].rstrip()
        if title.startswith(" ") and not over:
            continue
        style = (under[1], over)
        if style not in styles:
            styles.append(style)
        yield Heading(index - over, index + 1, styles.index(style) + 1, title.strip())


def _is_title(line: str) -> bool:
    return bool(line.strip()) and not _ADORNMENT.fullmatch(line) and not line.startswith((".. ", "\t"))
