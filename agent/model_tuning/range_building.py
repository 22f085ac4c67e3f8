"""Which M the entries of a model's library are built for below their own, and the kernels that take them."""

import time
from collections.abc import Iterable, Iterator, Sequence
from concurrent.futures import as_completed
from datetime import UTC, datetime
from typing import NamedTuple

from cudal2.library.kernel_library import EntryRange
from cudal2_agent.agent.library.entry_source import source_sha256
from cudal2_agent.agent.library.m_ranges import prepare_range, range_candidate
from cudal2_agent.agent.library.preparing import compiler_threads
from cudal2_agent.contract.errors import LibraryError
from cudal2_agent.contract.records.library import LibraryEntry, MRange
from cudal2_agent.contract.records.task import GemmTask
from cudal2_agent.contract.settings.settings import Settings


class AskedRange(NamedTuple):
    """An entry, and the smallest M that its kernel may serve: the one behind the next smaller M that the model has."""

    entry: LibraryEntry
    floor: int


class BuiltRange(NamedTuple):
    """`found`: the range before anything of it was measured. None where `fault` says why its kernel was not built."""

    asked: AskedRange
    found: EntryRange | None
    fault: str = ""


def asked_ranges(entries: Sequence[LibraryEntry], tasks: Iterable[GemmTask]) -> list[AskedRange]:
    """A range for each entry that has room below it. `tasks`: all products of the model, each of which has its own way."""
    rows: dict[GemmTask, list[int]] = {}
    for task in tasks:
        rows.setdefault(_weight(task), []).append(task.m)
    floors = [max((m for m in rows.get(_weight(one.task), ()) if m < one.task.m), default=0) + 1 for one in entries]
    return [AskedRange(one, floor) for one, floor in zip(entries, floors, strict=True) if floor < one.task.m]


def build_ranges(
    asked: Sequence[AskedRange], environment: str, settings: Settings, sms: int, end_s: float | None = None
) -> Iterator[BuiltRange]:
    """Build and prove their kernels in parallel. `end_s`: on the monotonic clock, after which none is begun.

    Raises: as `prepare_range`.
    """
    with compiler_threads(settings.compile_jobs) as pool:
        for done in as_completed([pool.submit(_build, one, environment, settings, sms, end_s) for one in asked]):
            if (built := done.result()) is not None:
                yield built


def _build(asked: AskedRange, environment: str, settings: Settings, sms: int, end_s: float | None) -> BuiltRange | None:
    entry, floor = asked
    if end_s is not None and time.monotonic() > end_s:
        return None
    try:
        sha256 = source_sha256(range_candidate(entry, floor, sms))
    except LibraryError as exc:
        return BuiltRange(asked, None, " ".join(str(exc).split()))
    found = MRange(
        entry=entry.id,
        smallest=floor,
        source_sha256=sha256,
        points=(),
        environment=environment,
        measured=datetime.now(UTC).date(),
    )
    built = prepare_range(entry, found, settings, sms)
    return BuiltRange(asked, None, built.message) if built.status == "failed" else BuiltRange(asked, EntryRange(entry, found))


def _weight(task: GemmTask) -> GemmTask:
    """The product without its M."""
    return task.model_copy(update={"m": 1})
