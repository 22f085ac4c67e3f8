"""Rows of a command in a file, one JSON record per line. A row that a killed process wrote in part is dropped."""

import os
from pathlib import Path
from typing import TypeVar

from cudal2_agent.contract.base import Record
from cudal2_agent.contract.errors import UsageError
from cudal2_agent.contract.foreign import parse_record, read_file
from cudal2_agent.contract.whole_file import whole_file

Row = TypeVar("Row", bound=Record)


def read_row_file(path: Path, kind: type[Row], command: str) -> list[Row]:
    """The rows of a file; none where it does not exist. A last line without its end is dropped.

    `command`: whose rows they are, for messages. Raises: UsageError.
    """
    try:
        text = read_file(path).decode()
    except FileNotFoundError:
        return []
    except (OSError, ValueError) as exc:
        raise UsageError(f"{path} cannot be read: {exc}; name another file with --rows") from exc
    whole, _, torn = text.rpartition("\n")
    if torn:
        _replace(path, f"{whole}\n" if whole else "")
    return [_parsed(path, number, line, kind, command) for number, line in enumerate(whole.splitlines(), 1)]


def append_row(path: Path, row: Record) -> None:
    """It is on the disk when this returns. Raises: UsageError where the file cannot be written."""
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        with path.open("a", encoding="utf-8") as file:
            file.write(f"{row.model_dump_json()}\n")
            file.flush()
            os.fsync(file.fileno())
    except OSError as exc:
        raise _unwritable(path, exc) from exc


def _parsed(path: Path, number: int, line: str, kind: type[Row], command: str) -> Row:
    try:
        return parse_record(kind, line)
    except ValueError as exc:
        raise UsageError(f"{path}, line {number} is not a row of `{command}`; name another file with --rows") from exc


def _replace(path: Path, text: str) -> None:
    try:
        with whole_file(path) as temporary:
            temporary.write_text(text, encoding="utf-8")
    except OSError as exc:
        raise _unwritable(path, exc) from exc


def _unwritable(path: Path, exc: OSError) -> UsageError:
    return UsageError(f"{path} cannot be written ({exc.strerror}); name another file with --rows")
