"""The lines of a file, and where to cut a long stretch of them."""

WINDOW = 60
_MIN_WINDOW = 30
_MIN_REST = 20  # lines of the last stretch


def read_lines(data: bytes) -> list[str]:
    """The lines of a file without line ends. Bytes that are not UTF-8 become the replacement character."""
    text = data.decode("utf-8", "replace").removeprefix("\ufeff")
    return text.replace("\r\n", "\n").replace("\r", "\n").split("\n")


def windows(lines: list[str], start: int, end: int, *, longest: int = WINDOW) -> list[tuple[int, int]]:
    """Lines start to end, counted from 1, inclusive, in stretches of at most `longest`, cut where a paragraph or block ends."""
    found: list[tuple[int, int]] = []
    while end - start + 1 > longest:
        cut = _best_cut(lines, start, end, longest)
        found.append((start, cut - 1))
        start = cut
    found.append((start, end))
    return [trimmed for first, last in found if (trimmed := trim(lines, first, last))]


def trim(lines: list[str], start: int, end: int) -> tuple[int, int] | None:
    """The stretch without blank lines at its ends; None if no line is left."""
    while start <= end and not lines[start - 1].strip():
        start += 1
    while end >= start and not lines[end - 1].strip():
        end -= 1
    return (start, end) if start <= end else None


def _best_cut(lines: list[str], start: int, end: int, longest: int) -> int:
    """The first line of the next stretch: preferably after a blank line, with as little indentation as possible."""
    last = min(start + longest, end + 1 - _MIN_REST)
    first = min(start + _MIN_WINDOW, last)

    def cost(line: int) -> tuple[bool, int, int]:
        text = lines[line - 1]
        stripped = text.lstrip()
        closes = stripped[:1] in ("}", ")", "]", "{") or not stripped
        return closes, len(text) - len(stripped) - 4 * (not lines[line - 2].strip()), -line

    return min(range(first, last + 1), key=cost)
