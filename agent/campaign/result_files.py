"""Results of campaigns as files: one JSON record per line and per task, packed by gzip where the name ends in .gz.

Any JSON reader opens them. Equal rows give equal bytes. Where a shape was measured
on several days, the newest row counts.
"""

import gzip
from collections.abc import Iterable, Iterator, Sequence
from pathlib import Path

from cudal2_agent.contract.errors import StoreError, UsageError
from cudal2_agent.contract.foreign import parse_json, parse_record, read_lines
from cudal2_agent.contract.records.campaign import ShapeResult
from cudal2_agent.contract.records.module_campaign import CampaignResult, ModuleResult
from cudal2_agent.contract.records.task import TimingMode
from cudal2_agent.contract.settings.run_settings import RunSettings
from cudal2_agent.contract.whole_file import whole_file
from cudal2_agent.store.campaign_queue import CampaignQueue, campaign_names
from cudal2_agent.store.store import Store

SUFFIX = ".jsonl.gz"


def write_results(path: Path, rows: Iterable[CampaignResult]) -> int:
    """Write a whole file, in the order of the tasks; the number of rows. Raises: StoreError."""
    lines = [row.model_dump_json().encode() + b"\n" for row in sorted(rows, key=place)]
    content = b"".join(lines)
    try:
        with whole_file(path) as temporary:
            temporary.write_bytes(gzip.compress(content, mtime=0) if path.suffix == ".gz" else content)
    except OSError as exc:
        raise StoreError(f"{path} cannot be written ({exc.strerror}); name a folder that exists and has space") from exc
    return len(lines)


def read_rows(paths: Sequence[Path]) -> list[CampaignResult]:
    """All rows of the files, and of the files in the folders. Raises: UsageError, with the line number."""
    return [row for path in paths for file in _files(path) for row in _read(file)]


def read_results(paths: Sequence[Path]) -> list[ShapeResult]:
    """The rows of shapes among them. Raises: as `read_rows`."""
    return [row for row in read_rows(paths) if isinstance(row, ShapeResult)]


def import_results(store: Store, paths: Sequence[Path], name: str) -> tuple[int, int]:
    """Add the rows of files, or folders of them, to a campaign: (new rows, rows in all). Items of their tasks are done.

    A campaign that the store lacks is created. Raises: UsageError, with file and line; nothing is imported then.
    """
    rows = read_rows(paths)
    queue = CampaignQueue(store, name)
    if name not in campaign_names(store):
        queue.open(RunSettings())
    return queue.take_over(rows), len(rows)


def place(row: CampaignResult) -> tuple[object, ...]:
    """The order of rows: by mode, kind of product and sizes, then by environment and age; then modules by level and name."""
    if isinstance(row, ModuleResult):
        return (1, row.task.level, row.task.name, row.task.id, row.environment or "", row.finished_at)
    task = row.task
    kind = (list(TimingMode).index(task.mode), task.layout.value, task.element.value, task.accumulate.value)
    return (0, *kind, task.m, task.n, task.k, row.environment or "", row.finished_at)


def _files(path: Path) -> list[Path]:
    if path.is_dir():
        return sorted(path.glob(f"*{SUFFIX}"))
    if not path.is_file():
        raise UsageError(f"{path} does not exist; name a file of campaign results (*{SUFFIX}) or a folder of them")
    return [path]


def _read(path: Path) -> Iterator[CampaignResult]:
    try:
        lines = list(read_lines(path))
    except (OSError, ValueError) as exc:
        raise UsageError(f"{path} cannot be read as a file of JSON lines: {exc}") from exc
    for number, line in enumerate(lines, 1):
        try:
            yield parse_record(ModuleResult, line) if _is_module(line) else parse_record(ShapeResult, line)
        except ValueError as exc:
            raise UsageError(f"{path}, line {number} is not a campaign result: {exc}") from exc


def _is_module(line: str | bytes) -> bool:
    told = parse_json(line)
    return isinstance(told, dict) and told.get("kind") == "module"


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
    for row in sorted(rows, key=_standing):
        if row.environment in (None, environment or next(iter(known), None)):
            chosen[row.task.id] = row
    return sorted(chosen.values(), key=place)


def _standing(row: ShapeResult) -> tuple[object, ...]:
    """Of several rows of a task the last in this order counts. The same row may be told before and after its proof."""
    return row.best is not None, row.finished_at, row.explained is not None, bool(row.witness)
