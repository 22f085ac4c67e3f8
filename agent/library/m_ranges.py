"""Ranges of M: one kernel of an entry's schedule that takes M as it comes, kept once the emulator has found it right at both
ends of the range.

Covered: all that `preparing` covers; schedules whose text holds M, which are refused.
Not covered: a transposed A, whose rows change with M; what `padded_m` does not cover.
"""

import hashlib
from functools import partial

from cudal2_agent.agent.library.entry_source import candidate_for_any_m, source_sha256
from cudal2_agent.agent.library.padded_m import EmulatorOf, open_emulator, proven_cubin, proven_plan
from cudal2_agent.agent.library.preparing import CachePlace, FreshKernel, PreparedEntry, into_place, opened_cache, require_nvrtc
from cudal2_agent.contract.errors import LibraryError, PlanError
from cudal2_agent.contract.plan.chip import LIMITS
from cudal2_agent.contract.plan.resolve import resolve
from cudal2_agent.contract.records.candidate import Candidate
from cudal2_agent.contract.records.library import LibraryEntry, MRange, RangeKernel
from cudal2_agent.contract.records.task import GemmTask, Layout
from cudal2_agent.contract.settings.settings import Settings
from cudal2_agent.sandbox.building.toolchain import nvrtc_version

_TRIED = 1024  # M from each end of a range at which its launch is resolved beforehand


def range_candidate(entry: LibraryEntry, smallest: int, sms: int) -> Candidate:
    """The kernel of an entry for all M from `smallest` to below its own: written for an odd M, so that it has every guard.

    Raises: LibraryError where the schedule cannot take M as it comes.
    """
    what, largest = f"entry {entry.id} ({entry.task.shape})", entry.task.m - 1
    if entry.task.layout is Layout.NT:
        raise LibraryError(f"{what} has no range of M: the rows of its A are M elements")
    if not 1 <= smallest <= largest:
        raise LibraryError(f"{what} has no M from {smallest} on below its own")
    candidate = candidate_for_any_m(entry, _at(entry, max(smallest, largest - 1 + largest % 2)))
    every, smem = range(smallest, largest + 1), set()
    for m in sorted({*every[:_TRIED], *every[-_TRIED:]}):
        try:
            plan = resolve(candidate.plan, _at(entry, m), LIMITS[entry.task.arch], sms)
        except PlanError as exc:
            raise LibraryError(f"{what} has no range of M: {exc}") from exc
        smem.add(tuple(one.dynamic_smem for one in plan.launches))
    if len(smem) > 1:
        raise LibraryError(f"{what} has no range of M: its shared memory depends on M")
    return candidate


def prepare_range(
    entry: LibraryEntry, m_range: MRange, settings: Settings, sms: int, emulator: EmulatorOf = open_emulator
) -> PreparedEntry:
    """Build the kernel of a range. `emulator`: what proves it.

    Raises: CompilerMissing, DeviceUnavailable without an emulator, MachineError, WorkerError.
    """
    kernels = opened_cache(settings)
    place = CachePlace(*kernels.range_paths(entry, sms), lambda: kernels.find_range(entry, m_range, sms))
    outcome = partial(PreparedEntry, id=entry.id, shape=span_words(entry, m_range.smallest), layout=entry.task.layout.value)
    return into_place(outcome, place, kernels.folder, partial(_proven, entry, m_range, settings, sms, emulator))


def span_words(entry: LibraryEntry, smallest: int) -> str:
    """A range as a person reads it, such as `33-63x4096x4096`."""
    task = entry.task
    return f"{smallest}-{task.m - 1}x{task.n}x{task.k}"


def _proven(entry: LibraryEntry, m_range: MRange, settings: Settings, sms: int, emulator: EmulatorOf) -> FreshKernel:
    """Raises: LibraryError where the kernel cannot be written, is not compiled or not found right."""
    require_nvrtc(entry)
    candidate = range_candidate(entry, m_range.smallest, sms)
    if source_sha256(candidate) != m_range.source_sha256:
        raise LibraryError(
            f"the range of M of entry {entry.id[:8]} is stale: its source today is not the one that was measured"
        )
    verdicts, cubin = dict[int, str](), b""
    for m in sorted({m_range.smallest, entry.task.m - 1}):
        task = _at(entry, m)
        proven_plan(candidate, task, sms)
        cubin, verdicts[m] = proven_cubin(candidate, task, settings, emulator)
    record = RangeKernel(
        entry_task=entry.task,
        smallest=m_range.smallest,
        source_sha256=entry.source_sha256,
        text_sha256=m_range.source_sha256,
        cubin_sha256=hashlib.sha256(cubin).hexdigest(),
        compiler=f"nvrtc {nvrtc_version()}",
        plan=candidate.plan,
        verdicts=verdicts,
    )
    return FreshKernel(cubin, record, next(iter(verdicts.values())))


def _at(entry: LibraryEntry, m: int) -> GemmTask:
    return entry.task.model_copy(update={"m": m})
