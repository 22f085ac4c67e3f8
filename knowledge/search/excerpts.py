"""What is shown of a piece that was found: its whole definition where that is short enough, else its surroundings."""

from knowledge.lexical.lexical_index import Lexical

MOST_LINES = 148
_REACH = 40  # pieces to either side among which neighbours are looked for
Lines = tuple[int, int]


def grow(index: Lexical, position: int, most_lines: int = MOST_LINES) -> Lines:
    """Lines around a piece, its own always among them: its definition, then neighbouring pieces of the file as they fit.

    A section of a document is shown alone; it was written to make sense so.
    """
    start, end = own_lines(index, position)
    if end - start >= most_lines:
        return start, end
    outer = int(index.column("outer_start")[position]), int(index.column("outer_end")[position])
    if max(end, outer[1]) - min(start, outer[0]) < most_lines:
        start, end = min(start, outer[0]), max(end, outer[1])
    if index.value("kind", position) == "section":
        return start, end
    before, after = _neighbours(index, position, start, end)
    while before or after:
        if after:
            low, high = own_lines(index, after.pop(0))
            end, after = (max(end, high), after) if max(end, high) - start < most_lines else (end, [])
        if before:
            low, high = own_lines(index, before.pop(0))
            start, before = (min(start, low), before) if end - min(start, low) < most_lines else (start, [])
    return start, end


def _neighbours(index: Lexical, position: int, start: int, end: int) -> tuple[list[int], list[int]]:
    """Positions of the same file before these lines, the nearest first, and after them."""
    # A path may stand in several versions, one after the other; no two of them are in the same release.
    own = [index.column(name)[position] for name in ("path", "releases")]
    near = range(max(position - _REACH, 0), min(position + _REACH + 1, len(index)))
    inside = [p for p in near if index.column("path")[p] == own[0] and index.column("releases")[p] == own[1]]
    before = [p for p in reversed(inside) if index.column("end")[p] < start]
    after = [p for p in inside if index.column("start")[p] > end]
    return before, after


def own_lines(index: Lexical, position: int) -> Lines:
    return int(index.column("start")[position]), int(index.column("end")[position])


def overlap(one: Lines, other: Lines) -> bool:
    return one[0] <= other[1] and other[0] <= one[1]
