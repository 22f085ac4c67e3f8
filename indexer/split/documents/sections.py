"""Splits a document into sections, one per heading. A long section is cut between paragraphs."""

from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass

from cudal2_agent.contract.records.knowledge import SplitFile
from cudal2_agent.indexer.split.assembly import assemble
from cudal2_agent.indexer.split.spans import Span
from cudal2_agent.indexer.split.text_lines import trim

LONGEST = 120
_AIM = 80  # lines of the parts of a longer section

# The titles in a list of sources would match the questions that the other sections answer.
UNINDEXED_HEADINGS = frozenset({"sources"})


@dataclass(frozen=True, slots=True)
class Heading:
    """A heading on lines `start` to `end`, counted from 1, inclusive. Level 1 is the highest."""

    start: int
    end: int
    level: int
    title: str


def split_sections(
    path: str,
    data: bytes,
    lines: list[str],
    headings: Iterable[Heading],
    *,
    title: str,
    archs: tuple[str, ...] = (),
    first: int = 1,
    may_cut: Callable[[int], bool] = lambda _line: True,
) -> SplitFile:
    """The sections from line `first` on. `may_cut`: whether a blank line, by number, is between paragraphs.

    A heading without text becomes part of the names of the headings below it. Lists of sources are left out.
    """
    spans = list(_spans(lines, list(headings), title, first, may_cut))
    return assemble(path, data, lines, spans, archs=archs, guess_archs=False)


def _spans(lines: list[str], headings: list[Heading], title: str, first: int, may_cut: Callable[[int], bool]) -> Iterator[Span]:
    trail: list[Heading] = []
    ends = [heading.start - 1 for heading in headings] + [len(lines)]
    if preamble := trim(lines, first, ends[0]):
        yield from _section(lines, *preamble, title, may_cut)
    for heading, end in zip(headings, ends[1:], strict=True):
        trail = [*(upper for upper in trail if upper.level < heading.level), heading]
        stretch = trim(lines, heading.start, end)
        if stretch is None or stretch[1] <= heading.end or heading.title.strip().lower() in UNINDEXED_HEADINGS:
            continue
        yield from _section(lines, *stretch, " > ".join(upper.title for upper in trail), may_cut)


def _section(lines: list[str], start: int, end: int, symbol: str, may_cut: Callable[[int], bool]) -> Iterator[Span]:
    for part, (first, last) in enumerate(_paragraphs(lines, start, end, may_cut)):
        yield Span(first, last, symbol, "section", (start, end), part=part)


def _paragraphs(lines: list[str], start: int, end: int, may_cut: Callable[[int], bool]) -> Iterator[tuple[int, int]]:
    """Lines start to end, in parts that end at blank lines if they are many."""
    while end - start + 1 > LONGEST:
        blank = [line for line in range(start + 1, end) if not lines[line - 1].strip() and may_cut(line)]
        inside = [line for line in blank if start + _AIM // 2 <= line < start + LONGEST]
        later = [line for line in blank if line >= start + LONGEST]
        if not inside and not later:
            break
        cut = min(inside, key=lambda line: abs(line - start - _AIM)) if inside else later[0]
        if trimmed := trim(lines, start, cut):
            yield trimmed
        start = cut + 1
    if trimmed := trim(lines, start, end):
        yield trimmed
