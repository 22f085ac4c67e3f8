"""Tables of text: rows in aligned columns that fit the width of a log, and cells that may be empty."""

from collections.abc import Sequence

LINE_CHARS = 100
NONE = "–"
_GAP = "  "


def aligned(rows: Sequence[Sequence[str]], right: frozenset[int] = frozenset(), flexible: int = 0) -> list[str]:
    """One line per row. Columns in `right` are aligned right; the flexible one is cut where a line would be too long."""
    if not rows:
        return []
    widths = [max(len(row[place]) for row in rows) for place in range(len(rows[0]))]
    surplus = sum(widths) + len(_GAP) * (len(widths) - 1) - LINE_CHARS
    widths[flexible] -= max(0, min(surplus, widths[flexible] - 1))
    return [_line(row, widths, right) for row in rows]


def cell(value: float | None, form: str = ".2f", unit: str = "") -> str:
    """A number with its unit; a dash for what is not known."""
    return NONE if value is None else f"{value:{form}}{unit}"


def _line(row: Sequence[str], widths: Sequence[int], right: frozenset[int]) -> str:
    cells = []
    for place, (text, width) in enumerate(zip(row, widths, strict=True)):
        cut = text if len(text) <= width else text[: width - 1] + "…"
        cells.append(cut.rjust(width) if place in right else cut.ljust(width))
    return _GAP.join(cells).rstrip()
