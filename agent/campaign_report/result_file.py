"""Results of campaigns as files: one JSON record per line and per task, compressed by gzip. Any JSON reader opens them.

Files of `campaign results --out`, whose lines hold the name of a campaign beside each row, are read as well.
"""

import gzip
from collections.abc import Iterable, Sequence
from pathlib import Path

from pydantic import ValidationError

from contract.base import Record
from contract.campaign import ShapeResult
from contract.errors import UsageError
from contract.task import TimingMode
from contract.whole_file import whole_file

SUFFIX = ".jsonl.gz"
_HEADER = '{"format"'


def write_results(path: Path, rows: Iterable[ShapeResult]) -> None:
    """The rows in the order of their tasks. Equal rows give equal bytes. Raises: OSError."""
    lines = [row.model_dump_json() for row in sorted(rows, key=_place)]
    content = "".join(f"{line}\n" for line in lines).encode()
    with whole_file(path) as temporary:
        temporary.write_bytes(gzip.compress(content, compresslevel=9, mtime=0))


def read_results(paths: Sequence[Path]) -> list[ShapeResult]:
    """All rows of the files, and of the files in the folders. Raises: UsageError for a file that is missing or not of rows."""
    return [row for path in paths for file in _files(path) for row in _read(file)]


def counting(rows: Iterable[ShapeResult], environment: str | None = None) -> list[ShapeResult]:
    """One row per task, of one environment: the newest that has a kernel, else the newest.

    The largest speedup of several days would be a maximum over noise, so the newest measurement counts, faster or not.
    `environment`: needed where the rows come from several. Raises: UsageError.
    """
    rows = list(rows)
    known = sorted({row.environment for row in rows if row.environment})
    if environment is None and len(known) > 1:
        raise UsageError(f"the rows come from {len(known)} environments; name one of them: {'; '.join(known)}")
    if environment is not None and environment not in known:
        raise UsageError(f"no row comes from environment {environment!r}; there are: {'; '.join(known) or 'none'}")
    chosen: dict[str, ShapeResult] = {}
    for row in sorted(rows, key=lambda row: (row.best is not None, row.finished_at)):
        if row.environment in (None, environment or next(iter(known), None)):
            chosen[row.task.id] = row
    return sorted(chosen.values(), key=_place)


def _files(path: Path) -> list[Path]:
    if path.is_dir():
        return sorted(path.glob(f"*{SUFFIX}"))
    if not path.is_file():
        raise UsageError(f"{path} does not exist; name a file of campaign results (*{SUFFIX}) or a folder of them")
    return [path]


def _read(file: Path) -> list[ShapeResult]:
    try:
        lines = gzip.decompress(file.read_bytes()).decode().splitlines()
    except (OSError, EOFError, UnicodeDecodeError) as exc:
        raise UsageError(f"{file} is not a gzip file of JSON lines: {exc}") from exc
    rows = []
    for number, line in enumerate(lines, 1):
        if number == 1 and line.startswith(_HEADER):
            continue
        try:
            rows.append(_row(line))
        except ValidationError as exc:
            error = exc.errors()[0]
            where = ".".join(str(part) for part in error["loc"])
            raise UsageError(f"{file}, line {number} is not a campaign result: {where} {error['msg']}") from exc
    return rows


def _row(line: str) -> ShapeResult:
    """A row, or the row beside the name of its campaign."""
    return _Named.model_validate_json(line).result if line.startswith('{"campaign"') else ShapeResult.model_validate_json(line)


class _Named(Record):
    campaign: str
    result: ShapeResult


def _place(row: ShapeResult) -> tuple[object, ...]:
    task = row.task
    modes = list(TimingMode)
    kind = (modes.index(task.mode), task.layout.value, task.element.value, task.accumulate.value)
    return (*kind, task.m, task.n, task.k, row.environment or "", row.finished_at)
