"""Cuts a file into spans of a readable size: short definitions are merged, long ones are cut, and every line is covered."""

import re
from collections.abc import Iterator
from dataclasses import dataclass, replace

from cudal2_agent.contract.records.knowledge import PieceKind
from cudal2_agent.indexer.split.outline import Definition
from cudal2_agent.indexer.split.text_lines import WINDOW, trim, windows

WHOLE = 80  # maximum lines of a definition that stays one piece
MERGED = 40  # maximum lines of short definitions that are merged
_SHORT_MEMBER, _SHORT_FREE = 8, 6

_CLOSING = re.compile(r"\s*(?:[})\];,]+[\s;]*(?://.*|/\*.*)?|#\s*endif.*|)")
_OPENING = re.compile(
    r"\s*(?:#.*|//.*|/\*[*=\-\s]*(?:\*/)?|\*+/|(?:inline\s+)?namespace\b.*|using\s+(?:namespace\s+)?[\w:]+\s*;.*|extern \"C\".*"
    r"|(?:public|private|protected)\s*:.*|(?:if|elif|else|try|except|finally|with)\b.*:\s*|[{;]*|(?:(?:CUTE|CUTLASS)_[A-Z_]+\s*|static\s*|inline\s*|constexpr\s*)+|)"
)
_COMMENT = re.compile(r"//[^\n]*|/\*.*?\*/|^[ \t]*#(?:[^\\\n]|\\.)*", re.DOTALL | re.MULTILINE)
_INCLUDE = re.compile(r"\s*#\s*(?:include|pragma\s+once)|(?:from\s+[\w.]+\s+)?import\s")
_REMARK = 24  # maximum lines of comment that are attached to the next definition
_SALVAGED = re.compile(
    r"^\s*(?:typedef\s+)?(?P<class>struct|class|union|enum(?:\s+class)?)\s+(?:alignas\([^)]*\)\s*)?(?P<name>\w+)[^;]*$"
    r"|^[ ]{0,4}(?:[\w:<>,*&]+\s+)*?[*&]*(?P<function>~?\w{3,})\s*\([^;]*$",
    re.MULTILINE,
)


@dataclass(frozen=True, slots=True)
class Span:
    """Lines of a file that become a piece.

    `names`: of the definitions in it. `members`: of their members. `part`: its position among the parts of a definition.
    """

    start: int
    end: int
    symbol: str
    kind: PieceKind
    definition: tuple[int, int]
    names: tuple[str, ...] = ()
    members: tuple[str, ...] = ()
    family: str = ""
    part: int = 0
    whole: bool = True


def cut(definitions: tuple[Definition, ...], lines: list[str], start: int, scope: str = "") -> list[Span]:
    """Spans that cover all lines with text from `start` on, in order."""
    head = _head(definitions, lines, start)
    begin = head[-1].end + 1 if head else start
    return [*head, *_region(definitions, lines, begin, len(lines), scope, short=_SHORT_FREE)]


def _head(definitions: tuple[Definition, ...], lines: list[str], start: int) -> list[Span]:
    """The comments and includes at the top of a file. The span lists the definitions of the file as its members."""
    first = definitions[0].start if definitions else len(lines) + 1
    includes = [line for line in range(start, min(first, len(lines) + 1)) if _INCLUDE.match(lines[line - 1])]
    if not includes or not (stretch := trim(lines, start, includes[-1])):
        return []
    names = tuple(dict.fromkeys(definition.symbol for definition in definitions if definition.symbol))
    parts = windows(lines, *stretch)
    return [Span(*part, "", "text", part, members=() if index else names) for index, part in enumerate(parts)]


def _region(
    definitions: tuple[Definition, ...], lines: list[str], start: int, end: int, scope: str, *, short: int
) -> list[Span]:
    spans: list[Span] = []
    at = start
    for definition in definitions:
        if definition.end < at:
            continue
        first = max(definition.start, at)
        opened = _between(spans, lines, at, first - 1, scope)
        made = list(_definition(definition, lines, first))
        made[0] = _grown(made[0], start=opened)
        spans.extend(made)
        at = definition.end + 1
    rest = _between(spans, lines, at, end, scope)
    if left := trim(lines, rest, end):
        if spans and _remark(lines, *left):
            spans[-1] = _grown(spans[-1], end=left[1])
        else:
            spans.extend(_texts(lines, *left, scope))
    return list(_merged(spans, short))


def _between(spans: list[Span], lines: list[str], start: int, end: int, scope: str) -> int:
    """Assign the lines between two definitions: closings to the upper one, text to spans. Returns the first line left."""
    at = _close(spans, lines, start, end)
    code = _code(lines, at, end)
    last = max((line for line, text in enumerate(code, start=at) if not _OPENING.fullmatch(text)), default=at - 1)
    if last < end and not _remark(lines, last + 1, end):
        last = end
    if text := trim(lines, at, last):
        spans.extend(_texts(lines, *text, scope))
        at = last + 1
    return (trim(lines, at, end) or (end + 1,))[0]


def _close(spans: list[Span], lines: list[str], start: int, end: int) -> int:
    """Assign lines that close blocks to the last span. Returns the line after them."""
    closed = start - 1
    for line in range(start, end + 1 if spans else start):
        if _CLOSING.fullmatch(lines[line - 1]):
            closed = line if lines[line - 1].strip() else closed
        elif not _OPENING.fullmatch(lines[line - 1]) or "namespace" in lines[line - 1]:
            break
    if closed >= start:
        spans[-1] = _grown(spans[-1], end=closed)
    return closed + 1


def _code(lines: list[str], start: int, end: int) -> list[str]:
    """The lines without comments and directives."""
    return _COMMENT.sub(lambda match: "\n" * match[0].count("\n"), "\n".join(lines[start - 1 : end])).split("\n")


def _remark(lines: list[str], start: int, end: int) -> bool:
    """Whether the stretch is short and has only comments and lines that open a block."""
    stretch = trim(lines, start, end)
    if stretch is None:
        return True
    return stretch[1] - stretch[0] < _REMARK and all(_OPENING.fullmatch(text) for text in _code(lines, *stretch))


def _grown(span: Span, *, start: int = 0, end: int = 0) -> Span:
    first, last = min(start or span.start, span.start), max(end, span.end)
    around = (min(first, span.definition[0]), max(last, span.definition[1]))
    return replace(span, start=first, end=last, definition=around)


def _texts(lines: list[str], start: int, end: int, scope: str) -> Iterator[Span]:
    """Spans of lines outside all definitions, named after a definition that a pattern finds in them."""
    for first, last in windows(lines, start, end):
        found, kind = _salvaged("\n".join(lines[first - 1 : last]))
        symbol = f"{scope}::{found}" if scope and found else found or scope
        yield Span(first, last, symbol, kind, (first, last), (symbol,) if found else ())


def _salvaged(text: str) -> tuple[str, PieceKind]:
    match = _SALVAGED.search(text)
    if match is None:
        return "", "text"
    if match["name"]:
        return match["name"], "enum" if match["class"].startswith("enum") else "class"
    return match["function"], "function"


def _definition(definition: Definition, lines: list[str], start: int) -> Iterator[Span]:
    own = (start, definition.end)
    names = definition.names or ((definition.symbol,) if definition.symbol else ())
    members = tuple(dict.fromkeys(member.symbol for member in definition.members if member.symbol))
    span = Span(start, definition.end, definition.symbol, definition.kind, own, names, members, definition.family)
    if definition.end - start + 1 <= WHOLE:
        yield span
    elif definition.members:
        yield from _class(definition, lines, span)
    else:
        yield from _parts(span, lines, start, definition.end, WINDOW)


def _parts(span: Span, lines: list[str], start: int, end: int, longest: int) -> Iterator[Span]:
    for part, (first, last) in enumerate(windows(lines, start, end, longest=longest)):
        yield replace(span, start=first, end=last, part=part, whole=False, members=() if part else span.members)


def _class(definition: Definition, lines: list[str], span: Span) -> Iterator[Span]:
    """A long class: the head up to the first method, then the members."""
    first = next((i for i, member in enumerate(definition.members) if member.kind in ("function", "class")), None)
    if first is None:
        yield from _parts(span, lines, span.start, span.end, WHOLE)
        return
    begins = definition.members[first].start
    head = list(_parts(span, lines, span.start, begins - 1, WHOLE)) if begins > span.start else []
    yield from head
    rest = _region(definition.members[first:], lines, begins, definition.end, definition.symbol, short=_SHORT_MEMBER)
    for part, made in enumerate(rest, start=len(head)):
        yield replace(made, family=definition.family, part=part) if definition.family else made


def _merged(spans: list[Span], short: int) -> Iterator[Span]:
    """The spans with short neighbours merged, and overloads merged."""
    held: Span | None = None
    for span in spans:
        if held is not None and _belong(held, span, short):
            held = _together(held, span)
            continue
        if held is not None:
            yield held
        held = span
    if held is not None:
        yield held


def _together(first: Span, second: Span) -> Span:
    """Two spans merged, named after the first that is a definition."""
    named = second if first.kind == "text" else first
    return replace(
        named,
        start=first.start,
        end=second.end,
        definition=(first.start, second.end),
        names=tuple(dict.fromkeys((*first.names, *second.names))),
        members=(*first.members, *second.members),
        family="",
    )


def _belong(held: Span, span: Span, short: int) -> bool:
    if not (held.whole and span.whole) or span.end - held.start + 1 > MERGED:
        return False
    alike = held.symbol == span.symbol and held.kind == span.kind == "function"
    return alike or (_length(span) < short and (_length(held) < short or len(held.names) > 1))


def _length(span: Span) -> int:
    return span.end - span.start + 1
