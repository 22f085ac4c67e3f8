"""Builds and judges kernels for ranges of M, some at a time, so that little is lost with a process that ends."""

import time
from collections.abc import Callable, Iterator, Sequence
from datetime import UTC, datetime
from pathlib import Path
from typing import Protocol

from cudal2.dispatch.decision import GpuIdentity
from cudal2.library.kernel_library import EntryRange
from cudal2_agent.agent.library.preparing import library_cache
from cudal2_agent.agent.model_tuning.gpu_stages import survived
from cudal2_agent.agent.model_tuning.range_building import AskedRange, build_ranges
from cudal2_agent.agent.model_tuning.tune_records import JudgedRange
from cudal2_agent.contract.records.library import LibraryEntry
from cudal2_agent.contract.settings.settings import Settings

_LEAST_AT_A_TIME = 8


class RangeJudge(Protocol):
    """The GPU: `gpu_stages.GpuStages`."""

    def ranged(self, asked: Sequence[EntryRange], cache: Path) -> Iterator[JudgedRange]: ...


def measure_ranges(
    asked: Sequence[AskedRange],
    judge: RangeJudge,
    identity: GpuIdentity,
    environment: str,
    settings: Settings,
    keep: Callable[[LibraryEntry, JudgedRange], None],
    end_s: float | None = None,
) -> None:
    """A row for each, which `keep` is given as it is known. `end_s`: on the monotonic clock, after which none is begun.

    Raises: CompilerMissing, DeviceUnavailable without an emulator, MachineError, WorkerError.
    """
    cache, at_a_time = library_cache(settings), max(_LEAST_AT_A_TIME, 2 * settings.compile_jobs)
    for first in range(0, len(asked), at_a_time):
        some = asked[first : first + at_a_time]
        if end_s is not None and time.monotonic() > end_s:
            return
        entries, waiting = {one.entry.id: one.entry for one in some}, list[EntryRange]()
        for built in build_ranges(some, environment, settings, identity.sms, end_s):
            if built.found is not None:
                waiting.append(built.found)
            else:
                keep(built.asked.entry, _no_range(built.asked, identity, environment, built.fault))
        for row in survived(
            waiting,
            lambda left: judge.ranged(left, cache),
            lambda one, why: _no_range(AskedRange(one.entry, one.m_range.smallest), identity, environment, why),
        ):
            keep(entries[row.entry], row)


def _no_range(asked: AskedRange, identity: GpuIdentity, environment: str, why: str) -> JudgedRange:
    return JudgedRange(
        entry=asked.entry.id,
        floor=asked.floor,
        chip=identity.gpu,
        environment=environment,
        m_range=None,
        fault=why,
        measured_at=datetime.now(UTC),
    )
