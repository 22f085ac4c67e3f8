"""A file as lines, and where a long stretch of them is best cut."""

WINDOW = 60
_LEAST = 30
_SCRAP = 20  # lines that are not worth a stretch of their own


def read_lines(data: bytes) -> list[str]:
    """The lines of a file, without their ends; bytes that are not UTF-8 become the replacement character."""
    text = data.decode("utf-8", "replace").removeprefix("\ufeff")
    return text.replace("\r\n", "\n").replace("\r", "\n").split("\n")


def windows(lines: list[str], start: int, end: int, *, longest: int = WINDOW) -> list[tuple[int, int]]:
    """Lines start to end, inclusive and from 1, as stretches of at most `longest`; cut where a paragraph or a block ends."""
    found: list[tuple[int, int]] = []
    while end - start + 1 > longest:
        cut = _best_cut(lines, start, end, longest)
        found.append((start, cut - 1))
        start = cut
    found.append((start, end))
    return [trimmed for first, last in found if (trimmed := trim(lines, first, last))]


def trim(lines: list[str], start: int, end: int) -> tuple[int, int] | None:
    """The stretch without blank lines at its ends; None where nothing is left."""
    while start <= end and not lines[start - 1].strip():
        start += 1
    while end >= start and not lines[end - 1].strip():
        end -= 1
    return (start, end) if start <= end else None


def _best_cut(lines: list[str], start: int, end: int, longest: int) -> int:
    """The line to start the next stretch with: after a blank line if there is one, and as little indented as can be."""
    last = min(start + longest, end + 1 - _SCRAP)
    first = min(start + _LEAST, last)

    def cost(line: int) -> tuple[bool, int, int]:
        text = lines[line - 1]
        stripped = text.lstrip()
        closes = stripped[:1] in ("}", ")", "]", "{") or not stripped
        return closes, len(text) - len(stripped) - 4 * (not lines[line - 2].strip()), -line

    return min(range(first, last + 1), key=cost)
