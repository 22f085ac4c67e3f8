"""Markdown tables of a script, and their place in a page between two lines that are not shown."""

from pathlib import Path
from typing import NamedTuple

from cudal2_agent.contract.errors import UsageError
from cudal2_agent.contract.whole_file import whole_file


class Marks(NamedTuple):
    begin: str
    end: str


def table_row(*cells: str) -> str:
    return f"| {' | '.join(cells)} |"


def between(module: str) -> Marks:
    """The marks around the tables of one script."""
    return Marks(f"<!-- tables of {module} -->\n", f"<!-- end of {module} -->")


def filled(page: str, marks: Marks, text: str) -> str:
    """The page with the text between the marks. Raises: UsageError where it has none."""
    before, begin, rest = page.partition(marks.begin)
    _, end, after = rest.partition(marks.end)
    if not begin or not end:
        raise UsageError(f"the page has no place for tables; add the lines {marks.begin.strip()!r} and {marks.end!r}")
    return f"{before}{begin}\n{text}\n{end}{after}".replace("\n\n\n", "\n\n")


def fill(page: Path, marks: Marks, text: str) -> None:
    """Replace what stands between the marks of a file. Raises: UsageError."""
    content = filled(page.read_text(encoding="utf-8"), marks, text)
    with whole_file(page) as temporary:
        temporary.write_text(content, encoding="utf-8")
