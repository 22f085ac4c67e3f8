"""Markdown documents of the knowledge folder: front matter, and one chunk a heading.

Covered: front matter of plain `key: value` lines, ATX headings (`#` to `######`), fenced code of either fence.
Not covered: nested front-matter values, underlined headings, indented code.
"""

import re
from collections.abc import Iterator
from pathlib import Path

from contract.base import Record
from contract.errors import KnowledgeError
from contract.knowledge import Chunk
from contract.task import Arch

RELEASE = "builtin"

# Titles of documents and papers would attract the very questions that the sections above them answer.
UNINDEXED_HEADINGS = frozenset({"Sources"})

_HEADING = re.compile(r"(#{1,6})[ \t]+(.+?)[ \t]*#*")
_FENCE = re.compile(r" {0,3}(`{3,}|~{3,})(.*)")


class Section(Record):
    """Text under one heading. `headings`: from the title down; lines count from 1 and include the heading."""

    headings: tuple[str, ...]
    start_line: int
    end_line: int
    text: str


class Document(Record):
    """A note. `path` is relative to the knowledge folder; no `archs` means that it holds for all."""

    path: str
    title: str
    archs: tuple[Arch, ...]
    front_matter: dict[str, str]
    sections: tuple[Section, ...]

    def chunks(self) -> list[Chunk]:
        """One chunk for each section that has a body and is not a list of sources."""
        return [
            Chunk(
                release=RELEASE,
                path=self.path,
                start_line=section.start_line,
                end_line=section.end_line,
                symbol=" > ".join(section.headings) or self.title,
                kind="note",
                archs=self.archs,
                text=section.text,
            )
            for section in self.sections
            if not UNINDEXED_HEADINGS.intersection(section.headings[-1:])
        ]


def read_documents(folder: Path) -> list[Document]:
    """Every markdown document under a folder, in the order of their paths. Raises: KnowledgeError."""
    if not folder.is_dir():
        raise KnowledgeError(f"the knowledge folder {folder} does not exist; reinstall the package or name another folder")
    try:
        paths = sorted(folder.rglob("*.md"))
    except OSError as exc:
        raise KnowledgeError(f"the knowledge folder {folder} cannot be listed: {exc.strerror}") from exc
    if not paths:
        raise KnowledgeError(f"the knowledge folder {folder} holds no markdown documents; reinstall the package")
    return [read_document(path, path.relative_to(folder).as_posix()) for path in paths]


def read_document(path: Path, name: str) -> Document:
    """One document from its file; `name` is the path its chunks will carry. Raises: KnowledgeError."""
    try:
        text = path.read_bytes().decode("utf-8-sig")
    except OSError as exc:
        raise KnowledgeError(f"knowledge document {path} cannot be read: {exc.strerror}") from exc
    except UnicodeDecodeError as exc:
        raise KnowledgeError(f"knowledge document {path} is not UTF-8 at byte {exc.start}; save it as UTF-8") from exc
    lines = text.replace("\r\n", "\n").split("\n")
    front_matter, body_start = _read_front_matter(lines, name)
    return Document(
        path=name,
        title=front_matter.get("title", Path(name).stem),
        archs=_read_archs(front_matter.get("archs", ""), name),
        front_matter=front_matter,
        sections=tuple(_split(lines, body_start)),
    )


def _read_front_matter(lines: list[str], name: str) -> tuple[dict[str, str], int]:
    """The front matter and the index of the first line after it."""
    if not lines or lines[0].strip() != "---":
        return {}, 0
    values: dict[str, str] = {}
    for index, line in enumerate(lines[1:], start=1):
        if line.strip() == "---":
            return values, index + 1
        key, colon, value = line.partition(":")
        if line.strip() and not colon:
            raise KnowledgeError(f"knowledge document {name}, line {index + 1}: front matter is 'key: value' lines until '---'")
        if colon:
            values[key.strip()] = value.strip()
    raise KnowledgeError(f"knowledge document {name}: the front matter is not closed by a line of '---'")


def _read_archs(text: str, name: str) -> tuple[Arch, ...]:
    try:
        return tuple(Arch(part.strip()) for part in text.split(",") if part.strip())
    except ValueError as exc:
        known = ", ".join(Arch)
        raise KnowledgeError(f"knowledge document {name}: archs {text!r} has an unknown one; known are {known}") from exc


def _split(lines: list[str], start: int) -> Iterator[Section]:
    """Sections between headings; a heading without a body of its own only names its sub-headings."""
    found = list(_find_headings(lines, start))
    trail: list[tuple[int, str]] = []
    bounds = [*(index for index, _, _ in found), len(lines)]
    if preamble := _section((), lines, start, bounds[0], body_start=start):
        yield preamble
    for (index, level, title), end in zip(found, bounds[1:], strict=True):
        trail = [(upper, name) for upper, name in trail if upper < level] + [(level, title)]
        headings = tuple(name for _, name in trail)
        if section := _section(headings, lines, index, end, body_start=index + 1):
            yield section


def _section(headings: tuple[str, ...], lines: list[str], start: int, end: int, *, body_start: int) -> Section | None:
    while end > body_start and not lines[end - 1].strip():
        end -= 1
    if end <= body_start or not any(line.strip() for line in lines[body_start:end]):
        return None
    return Section(headings=headings, start_line=start + 1, end_line=end, text="\n".join(lines[start:end]))


def _find_headings(lines: list[str], start: int) -> Iterator[tuple[int, int, str]]:
    """(line index, level, title) of every heading outside fenced code."""
    fence = ""
    for index in range(start, len(lines)):
        line = lines[index]
        if match := _FENCE.fullmatch(line):
            marks, rest = match.groups()
            if not fence:
                fence = marks
            elif marks[0] == fence[0] and len(marks) >= len(fence) and not rest.strip():
                fence = ""
        elif not fence and (heading := _HEADING.fullmatch(line)):
            yield index, len(heading[1]), heading[2]
