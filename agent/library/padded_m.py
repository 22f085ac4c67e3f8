"""Padded M: builds the schedule of an entry for a smaller M, and keeps the kernel once the emulator has found it right.

The entry was verified for its own M only. So the kernel passes the tests of `verify --device emulator` before it is kept.
Covered: all that `preparing` covers; a stale entry, a schedule that does not fit, a kernel that is wrong.
Not covered: large products, of which the emulator runs a part; and a number of SMs for which the kernel is launched otherwise
than on the reference chip, whose launch the emulator runs. Such a kernel is refused.
"""

import hashlib
from collections.abc import Callable
from contextlib import AbstractContextManager
from functools import partial
from pathlib import Path

from cudal2_agent.agent.library.entry_source import padded_candidate, source_sha256
from cudal2_agent.agent.library.preparing import FreshKernel, PreparedEntry, into_cache, opened_cache, require_nvrtc
from cudal2_agent.agent.wiring.sandbox import open_sandbox_of
from cudal2_agent.contract.errors import LibraryError, UsageError
from cudal2_agent.contract.events import ignore
from cudal2_agent.contract.plan.chip import LIMITS, REFERENCE_CHIPS
from cudal2_agent.contract.plan.plan import ResolvedPlan
from cudal2_agent.contract.plan.resolve import resolve
from cudal2_agent.contract.protocols import Sandbox
from cudal2_agent.contract.records.build import Built
from cudal2_agent.contract.records.candidate import Candidate
from cudal2_agent.contract.records.library import LibraryEntry, PaddedKernel
from cudal2_agent.contract.records.task import GemmTask, parse_shape
from cudal2_agent.contract.settings.settings import Settings
from cudal2_agent.sandbox.building.toolchain import nvrtc_version

EmulatorOf = Callable[[GemmTask, Settings], AbstractContextManager[Sandbox]]


def task_of_shape(entry: LibraryEntry, shape: str) -> GemmTask:
    """The task of an entry for another M. Raises: UsageError for a larger M, and for another N or K."""
    m, n, k = parse_shape(shape)
    if (n, k) != (entry.task.n, entry.task.k) or m > entry.task.m:
        raise UsageError(
            f"entry {entry.id[:8]} is of {entry.task.shape}: --shape {shape} must have its N and K, and no larger M"
        )
    return entry.task.model_copy(update={"m": m})


def open_emulator(task: GemmTask, settings: Settings) -> AbstractContextManager[Sandbox]:
    """Raises: CompilerMissing, DeviceUnavailable where the emulator was not built."""
    return open_sandbox_of(task.arch, settings.model_copy(update={"device": "emulator"}), ignore)


def prepare_padded(
    entry: LibraryEntry, task: GemmTask, settings: Settings, sms: int, emulator: EmulatorOf = open_emulator
) -> PreparedEntry:
    """Build an entry for a task that `task_of_shape` gave. `emulator`: what proves it.

    Raises: CompilerMissing, DeviceUnavailable without an emulator, MachineError, WorkerError.
    """
    return into_cache(entry, task, opened_cache(settings), sms, partial(_proven, entry, task, settings, sms, emulator))


def _proven(entry: LibraryEntry, task: GemmTask, settings: Settings, sms: int, emulator: EmulatorOf) -> FreshKernel:
    """Raises: LibraryError where the kernel cannot be written, is not compiled or not found right, PlanError."""
    require_nvrtc(entry)
    candidate = padded_candidate(entry, task)
    plan = proven_plan(candidate, task, sms)
    cubin, verdict = proven_cubin(candidate, task, settings, emulator)
    record = PaddedKernel(
        task=task,
        source_sha256=entry.source_sha256,
        cubin_sha256=hashlib.sha256(cubin).hexdigest(),
        compiler=f"nvrtc {nvrtc_version()}",
        plan=plan,
        entry_task=entry.task,
        text_sha256=source_sha256(candidate),
        verdict=verdict,
    )
    return FreshKernel(cubin, record, verdict)


def proven_cubin(candidate: Candidate, task: GemmTask, settings: Settings, emulator: EmulatorOf) -> tuple[bytes, str]:
    """A kernel's machine code, and the emulator's verdict on it for a task.

    Raises: LibraryError where it is not compiled or not found right.
    """
    with emulator(task, settings) as sandbox:
        [(_, built)] = sandbox.build([candidate], task)
        if not isinstance(built, Built):
            raise LibraryError(built.headline)
        evaluation = sandbox.evaluate(built, task, "full")
        if not evaluation.passed:
            raise LibraryError(f"the emulator did not find it right for {task.shape}: {evaluation.headline}")
        return Path(built.artifact_path).read_bytes(), evaluation.headline


def proven_plan(candidate: Candidate, task: GemmTask, sms: int) -> ResolvedPlan:
    """The launch plan for the SMs. Raises: LibraryError where the emulator would run another launch, PlanError."""
    limits, emulated = LIMITS[task.arch], REFERENCE_CHIPS[task.arch].sms
    plan = resolve(candidate.plan, task, limits, sms)
    if plan.model_copy(update={"sms": emulated}) != resolve(candidate.plan, task, limits, emulated):
        raise LibraryError(f"the emulator proves its launch for {emulated} SMs, and for {sms} it is another one")
    return plan
