"""The lines that are shown for a piece: its enclosing definition if that is short enough, and neighbouring pieces."""

from cudal2_agent.knowledge.lexical.lexical_index import LexicalIndex

MAX_LINES = 148
_REACH = 40  # positions before and after a piece that are searched for neighbours
LineSpan = tuple[int, int]


def grow(index: LexicalIndex, position: int, max_lines: int = MAX_LINES) -> LineSpan:
    """The lines of a piece, grown to its definition and then to neighbouring pieces of the file, within `max_lines`.

    A section of a document is shown alone, since it is written to be understood alone.
    """
    start, end = own_lines(index, position)
    if end - start >= max_lines:
        return start, end
    outer = int(index.column("outer_start")[position]), int(index.column("outer_end")[position])
    if max(end, outer[1]) - min(start, outer[0]) < max_lines:
        start, end = min(start, outer[0]), max(end, outer[1])
    if index.value("kind", position) == "section":
        return start, end
    before, after = _neighbours(index, position, start, end)
    while before or after:
        if after:
            low, high = own_lines(index, after.pop(0))
            end, after = (max(end, high), after) if max(end, high) - start < max_lines else (end, [])
        if before:
            low, high = own_lines(index, before.pop(0))
            start, before = (min(start, low), before) if end - min(start, low) < max_lines else (start, [])
    return start, end


def _neighbours(index: LexicalIndex, position: int, start: int, end: int) -> tuple[list[int], list[int]]:
    """Positions of the same file before and after these lines, nearest first."""
    # A path can have several versions, at consecutive positions. No two of them are in the same release.
    own = [index.column(name)[position] for name in ("path", "releases")]
    near = range(max(position - _REACH, 0), min(position + _REACH + 1, len(index)))
    inside = [p for p in near if index.column("path")[p] == own[0] and index.column("releases")[p] == own[1]]
    before = [p for p in reversed(inside) if index.column("end")[p] < start]
    after = [p for p in inside if index.column("start")[p] > end]
    return before, after


def own_lines(index: LexicalIndex, position: int) -> LineSpan:
    return int(index.column("start")[position]), int(index.column("end")[position])


def overlap(one: LineSpan, other: LineSpan) -> bool:
    return one[0] <= other[1] and other[0] <= one[1]
