"""Files of records, one JSON object a line, which only ever grow.

A process that is killed loses the line that it is writing. A damaged line stays where it is.
"""

import os
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Generic, TypeVar

from cudal2_agent.contract.base import Record
from cudal2_agent.contract.errors import UsageError
from cudal2_agent.contract.foreign import parse_record, read_lines

PACKED = ".gz"
R = TypeVar("R", bound=Record)


@dataclass(frozen=True)
class RecordLines(Generic[R]):
    """`what`: a record in words. `flag`: names the file on the command line."""

    record: type[R]
    what: str
    flag: str

    def read(self, paths: Sequence[Path]) -> tuple[list[R], list[str]]:
        """The records of files, which gzip may have packed, and a notice for each file with damaged lines.

        Raises: UsageError, also for a file without any record.
        """
        records: list[R] = []
        notices: list[str] = []
        for path in paths:
            lines = _lines(path)
            found = [one for line in lines if (one := self._record(line)) is not None]
            damaged = len(lines) - len(found)
            if lines and not found:
                raise UsageError(f"{path} holds no {self.what}; name another file")
            if damaged:
                notices.append(f"{damaged} damaged line{'s' if damaged > 1 else ''} of {path} left out")
            records += found
        return records, notices

    def append(self, path: Path, record: R) -> None:
        """The record is on the disk when this returns. Raises: UsageError where the file cannot be written."""
        try:
            path.parent.mkdir(parents=True, exist_ok=True)
            with path.open("ab+") as file:
                end = file.seek(0, os.SEEK_END)
                file.seek(max(end - 1, 0))
                torn = end > 0 and file.read(1) != b"\n"  # by a kill within a line
                file.write((b"\n" if torn else b"") + record.model_dump_json().encode() + b"\n")
                file.flush()
                os.fsync(file.fileno())
        except OSError as exc:
            raise UsageError(f"{path} cannot be written: {exc.strerror}; choose another file with {self.flag}") from exc

    def _record(self, line: bytes) -> R | None:
        try:
            return parse_record(self.record, line)
        except ValueError:
            return None


def _lines(path: Path) -> list[bytes]:
    """The lines that are not empty. Raises: UsageError."""
    try:
        return [line for line in read_lines(path) if line.strip()]
    except (OSError, ValueError) as exc:
        raise UsageError(f"{path} cannot be read: {getattr(exc, 'strerror', None) or exc}") from exc
