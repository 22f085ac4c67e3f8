"""Sections of Markdown: front matter, ATX and underlined headings, and fenced code, which is never cut.

Not covered: nested front-matter values, headings inside quotes and lists.
"""

import re
from collections.abc import Iterator
from pathlib import PurePosixPath

from cudal2_agent.contract.errors import SourceError
from cudal2_agent.contract.records.knowledge import SplitFile, arch_number
from cudal2_agent.indexer.split.documents.sections import Heading, split_sections
from cudal2_agent.indexer.split.text_lines import read_lines

_HEADING = re.compile(r" {0,3}(#{1,6})[ \t]+(.+?)(?:[ \t]+#+)?[ \t]*")
_UNDERLINE = re.compile(r" {0,3}(?:={2,}|-{2,})[ \t]*")
_FENCE = re.compile(r" {0,3}(`{3,}|~{3,})(.*)")
_NO_TITLE = re.compile(r"\s*(?:[#>|*+-]|\d+[.)]\s|<|$)| {4}|\t")  # lines that an underline does not turn into a heading
_VALUE = re.compile(r"([\w.-]+):(?:\s+(.*))?")
_ARCH = re.compile(r"sm_\d{2,3}[af]?")


def split_markdown(path: str, data: bytes) -> SplitFile:
    """One piece per section. Raises: SourceError for front matter with an invalid architecture."""
    lines = read_lines(data)
    front, body = _front_matter(lines)
    fenced = _fenced(lines, body)
    return split_sections(
        path,
        data,
        lines,
        _headings(lines, body, fenced),
        title=front.get("title") or PurePosixPath(path).stem,
        archs=_archs(front.get("archs", ""), path),
        first=body + 1,
        may_cut=lambda line: line - 1 not in fenced,
    )


def _front_matter(lines: list[str]) -> tuple[dict[str, str], int]:
    """The values of the front matter and the index of the line after it. A rule at the top is not front matter."""
    if lines[0].strip() != "---":
        return {}, 0
    values: dict[str, str] = {}
    for index, line in enumerate(lines[1:], start=1):
        if line.strip() == "---":
            return values, index + 1
        match = _VALUE.fullmatch(line.rstrip())
        if match:
            values[match[1]] = (match[2] or "").strip().strip("\"'")
        elif line.strip() and not line.startswith((" ", "\t", "#", "-")):
            break
    return {}, 0


def _archs(text: str, path: str) -> tuple[str, ...]:
    named = [part.strip() for part in text.strip("[]").split(",") if part.strip()]
    for one in named:
        if not _ARCH.fullmatch(one):
            raise SourceError(f"{path}: archs {text!r} in its front matter contains {one!r}; write them as sm_80, sm_90a")
    return tuple(dict.fromkeys(f"sm_{arch_number(one)}" for one in named))


def _fenced(lines: list[str], start: int) -> set[int]:
    """Indices of the lines of fenced code, including the fences."""
    found: set[int] = set()
    fence = ""
    for index in range(start, len(lines)):
        match = _FENCE.fullmatch(lines[index])
        if fence:
            found.add(index)
            if match and match[1].startswith(fence) and not match[2].strip():
                fence = ""
        elif match and not (match[1][0] == "`" and "`" in match[2]):
            fence = match[1]
            found.add(index)
    return found


def _headings(lines: list[str], start: int, fenced: set[int]) -> Iterator[Heading]:
    for index in range(start, len(lines)):
        if index in fenced:
            continue
        if match := _HEADING.fullmatch(lines[index]):
            yield Heading(index + 1, index + 1, len(match[1]), match[2])
        elif index > start and _UNDERLINE.fullmatch(lines[index]) and _titles(lines, index - 1, start, fenced):
            yield Heading(index, index + 1, 1 if "=" in lines[index] else 2, lines[index - 1].strip())


def _titles(lines: list[str], index: int, start: int, fenced: set[int]) -> bool:
    """Whether the line is a separate paragraph, which an underline turns into a heading."""
    alone = index == start or not lines[index - 1].strip() or bool(_HEADING.fullmatch(lines[index - 1]))
    return alone and index not in fenced and not _NO_TITLE.match(lines[index])
