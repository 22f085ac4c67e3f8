"""The text of HTML in sections by heading, with each line at its line of the source if possible."""

import re
from html.parser import HTMLParser
from pathlib import PurePosixPath

from cudal2_agent.contract.records.knowledge import SplitFile
from cudal2_agent.indexer.split.assembly import archs_in
from cudal2_agent.indexer.split.documents.sections import Heading, split_sections
from cudal2_agent.indexer.split.text_lines import read_lines

_HEADING = re.compile(r"h[1-6]")
_SILENT = frozenset({"script", "style", "template", "noscript", "svg", "nav", "head"})
_BLOCKS = re.compile(
    r"address|article|aside|blockquote|body|br|d[dlt]|div|fig(?:ure|caption)|footer|form|h[1-6r]|header|li|main|[ou]l|p|pre"
    r"|section|table|t[dhr]"
)
_SPACE = re.compile(r"[ \t\f\v]+")


def split_html(path: str, data: bytes) -> SplitFile:
    """One piece per section. The record holds the text without markup."""
    page = _Page()
    page.feed("\n".join(read_lines(data)))
    page.close()
    lines = [line.rstrip() for line in page.lines]
    return split_sections(
        path,
        data,
        lines,
        page.headings,
        title=page.title.strip() or PurePosixPath(path).stem,
        archs=archs_in(path),
    )


class _Page(HTMLParser):
    """Collects the text as lines. A block starts a new line, and blank lines follow the line numbers of the source."""

    def __init__(self) -> None:
        super().__init__(convert_charrefs=True)
        self.lines = [""]
        self.headings: list[Heading] = []
        self.title = ""
        self._silent: list[str] = []
        self._heading: tuple[str, int] | None = None
        self._in_title = False
        self._preformatted = 0

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:  # noqa: ARG002 (html.parser's signature)
        self._in_title = tag == "title"
        if tag in _SILENT:
            if not (tag == "head" and self._silent):
                self._silent.append(tag)
        elif self._silent and tag == "body":
            self._silent.clear()  # a head that was never closed
        if _BLOCKS.fullmatch(tag):
            self._new_line()
        self._preformatted += tag == "pre"
        if _HEADING.fullmatch(tag) and not self._silent:
            self._keep_pace()
            self._heading = (tag, len(self.lines))

    def handle_endtag(self, tag: str) -> None:
        self._in_title = False
        if tag in self._silent:
            del self._silent[self._silent.index(tag) :]
        self._preformatted = max(0, self._preformatted - (tag == "pre"))
        if self._heading and tag == self._heading[0]:
            self._end_heading()
        if _BLOCKS.fullmatch(tag):
            self._new_line()

    def handle_data(self, data: str) -> None:
        if self._in_title:
            self.title += " ".join(data.split())
        elif not self._silent and data.strip():
            self._keep_pace()
            for number, line in enumerate(data.split("\n")):
                if number:
                    self.lines.append("")
                self.lines[-1] += line if self._preformatted else self._spaced(line)

    def _spaced(self, line: str) -> str:
        short = _SPACE.sub(" ", line)
        return short if self.lines[-1] else short.lstrip()

    def _keep_pace(self) -> None:
        """Add blank lines up to the current line of the source, except inside preformatted text."""
        behind = self.getpos()[0] - len(self.lines)
        if behind > 0 and not self._preformatted:
            self.lines.extend([""] * behind)

    def _new_line(self) -> None:
        if self.lines[-1].strip() and not self._silent:
            self.lines.append("")

    def _end_heading(self) -> None:
        assert self._heading is not None
        tag, start = self._heading
        self._heading = None
        title = " ".join(" ".join(self.lines[start - 1 :]).replace("¶", " ").split())
        if title:
            self.headings.append(Heading(start, len(self.lines), int(tag[1]), title))
