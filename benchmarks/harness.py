"""What all scripts share: arguments, the stamp of a result, its file, Markdown tables, and their place in a page.

A script that measures takes `--out FILE.json` and `--commit HASH`, by default the commit of its checkout. Its result holds the
command, the commit, the date, the machine and the rows. A file is written whole, as a rule after every row, so that an
interrupted run keeps its rows; where a script resumes, the same command measures what is missing.
"""

import argparse
import datetime
import json
import os
import platform
import shlex
import sys
import tempfile
from collections.abc import Callable, Iterable, Iterator, Sequence
from pathlib import Path
from typing import Any, NamedTuple, NoReturn

from cudal2_agent.agent.run.versions import own_commit
from cudal2_agent.contract.errors import Cudal2Error, UsageError
from cudal2_agent.contract.whole_file import whole_file

ROOT = Path(__file__).resolve().parents[1]
Row = dict[str, Any]


# ---- arguments -------------------------------------------------------------------------------------------------------------
def module_of(file: str) -> str:
    """The module of a source file, as `python -m` takes it."""
    parts = Path(file).resolve().relative_to(ROOT).with_suffix("").parts
    return ".".join(parts[:-1] if parts[-1] == "__main__" else parts)


def script(file: str, doc: str | None, *, measures: bool = False) -> argparse.ArgumentParser:
    """The parser of a script, whose docstring is its help. `measures`: with the arguments of a result."""
    parser = argparse.ArgumentParser(
        prog=f"python -m {module_of(file)}", description=doc, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    if measures:
        result_arguments(parser)
    return parser


def result_arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("--out", type=Path, required=True, help="file of the result")
    parser.add_argument("--commit", default="", help="the measured commit; default: that of this checkout")


def cache_argument(parser: argparse.ArgumentParser, name: str) -> None:
    default = Path(tempfile.gettempdir()) / name
    parser.add_argument("--cache", type=Path, default=default, help="folder of compiled kernels")


def execute(main: Callable[[], int | None]) -> NoReturn:
    """End the process with what a script returns; an error of ours is one line."""
    try:
        code = main()
    except Cudal2Error as exc:
        print(f"error: {exc}", file=sys.stderr)
        code = exc.exit_code
    sys.exit(code)


# ---- results ---------------------------------------------------------------------------------------------------------------
def stamp(file: str, commit: str = "") -> dict[str, str]:
    """What made a result: command, commit, date and machine."""
    return {
        "command": f"python -m {module_of(file)} {shlex.join(sys.argv[1:])}".strip(),
        "commit": commit or checkout_commit(),
        "date": datetime.datetime.now(datetime.UTC).date().isoformat(),
        "machine": f"{os.cpu_count()} cores, {platform.machine()}, load {os.getloadavg()[0]:.1f} before",
    }


def checkout_commit() -> str:
    """The short hash of the commit that is checked out here; empty where this is no checkout of its own."""
    return own_commit(ROOT / "pyproject.toml")


def write_json(path: Path, content: Any) -> None:
    write_text(path, json.dumps(content, indent=1) + "\n")


def write_text(path: Path, text: str) -> None:
    with whole_file(path) as temporary:
        temporary.write_text(text, encoding="utf-8")


class ResultFile:
    """A result on disk. `resume`: the rows of an earlier call stay. Raises: UsageError for a file of another kind."""

    def __init__(self, path: Path, head: dict[str, Any], *, resume: bool = False) -> None:
        self.path = path
        self.earlier = _read(path) if resume and path.exists() else {}
        self.content: dict[str, Any] = {**head, "rows": list(self.earlier.get("rows", []))}

    @property
    def rows(self) -> list[Row]:
        rows: list[Row] = self.content["rows"]
        return rows

    def add(self, row: Row) -> None:
        self.rows.append(row)
        self.write()

    def write(self, **more: Any) -> None:
        self.content |= more
        write_json(self.path, self.content)


def _read(path: Path) -> dict[str, Any]:
    try:
        found = dict(json.loads(path.read_text(encoding="utf-8")))
        return found | {"rows": list(found["rows"])}
    except (ValueError, KeyError, TypeError) as exc:
        raise UsageError(f"{path} is not a result of this benchmark; name another --out") from exc


# ---- tables ----------------------------------------------------------------------------------------------------------------
def table_row(*cells: object) -> str:
    return f"| {' | '.join(map(str, cells))} |"


def table(head: Sequence[str], rows: Iterable[Iterable[object]]) -> Iterator[str]:
    """The lines of a Markdown table."""
    yield table_row(*head)
    yield "|---" * len(head) + "|"
    yield from (table_row(*row) for row in rows)


def shown(value: float | None, form: str = ".3f") -> str:
    return "—" if value is None else format(value, form)


class Marks(NamedTuple):
    """Lines of a page, which readers do not see, around the tables of a script."""

    begin: str
    end: str


def marks_of(file: str) -> Marks:
    module = module_of(file)
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
    write_text(page, filled(page.read_text(encoding="utf-8"), marks, text))
