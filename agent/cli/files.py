"""Evaluates kernel files in the sandbox, for `verify`, `bench` and `profile`."""

from collections.abc import Sequence
from pathlib import Path

from cudal2_agent.agent.cli.render.progress import Progress
from cudal2_agent.agent.run.counters import CounterGuard
from cudal2_agent.agent.wiring.sandbox import open_sandbox_of
from cudal2_agent.contract.base import Record
from cudal2_agent.contract.errors import DeviceUnavailable, ProfileFailed, UsageError
from cudal2_agent.contract.events import Emit, StageStarted
from cudal2_agent.contract.foreign import read_file
from cudal2_agent.contract.protocols import Sandbox
from cudal2_agent.contract.records.build import Built
from cudal2_agent.contract.records.candidate import UNPROVEN, AnyCandidate, Candidate, HostCandidate, Origin
from cudal2_agent.contract.records.diagnosis import Diagnosis
from cudal2_agent.contract.records.evaluation import Evaluation
from cudal2_agent.contract.records.profile import Difference, Profile
from cudal2_agent.contract.records.task import GemmTask
from cudal2_agent.contract.settings.settings import Settings
from cudal2_agent.sandbox.diagnosis.diagnosis import diagnose_built
from cudal2_agent.sandbox.diagnosis.differences import explain

MAX_SOURCE_BYTES = 16 << 20  # that are read; the check of a source allows far fewer
NOT_UTF8 = "it is not UTF-8 text; save it as UTF-8"


class FileResult(Record):
    """The result of one file. `unproven`: why the result is not a proof; empty where it is one."""

    file: str
    candidate_id: str
    evaluation: Evaluation
    unproven: str = ""

    @property
    def passed(self) -> bool:
        """Whether it was executed and found right."""
        return self.evaluation.passed


def evaluate_files(
    files: Sequence[Path], task: GemmTask, settings: Settings, *, timed: bool, host: bool = False
) -> list[FileResult]:
    """One result per file, in order. `host`: whether they are host candidates, which others have published.

    Raises: UsageError for a file that cannot be read or has no valid launch plan; DeviceUnavailable where times are wanted
    and no GPU can execute the task.
    """
    require_trust(files, settings, host=host)
    candidates = [read_candidate(file, host=host) for file in files]
    with Progress() as progress, open_sandbox_of(task.arch, settings, progress.emit, trust_host=host) as sandbox:
        if timed and not sandbox.can_measure:
            raise DeviceUnavailable(
                f"there is no {task.arch} GPU here, and bench needs one to time kernels (device {settings.device}); "
                "verify proves kernels without a GPU"
            )
        outcomes = dict(sandbox.build(candidates, task))
        evaluations = [_evaluate(sandbox, outcomes[position], task, timed) for position in range(len(candidates))]
    return [
        FileResult(file=str(file), candidate_id=candidate.id, evaluation=evaluation, unproven=unproven_of(candidate))
        for file, candidate, evaluation in zip(files, candidates, evaluations, strict=True)
    ]


def _evaluate(sandbox: Sandbox, outcome: Built | Evaluation, task: GemmTask, timed: bool) -> Evaluation:
    if not isinstance(outcome, Built):
        return outcome
    return sandbox.evaluate(outcome, task, "full") if timed else sandbox.verify(outcome, task)


def require_trust(files: Sequence[Path], settings: Settings, *, host: bool) -> None:
    """Raises: UsageError for host candidates that the user does not trust by a flag."""
    if host and not settings.trust_host:
        names = ", ".join(str(file) for file in files)
        raise UsageError(f"{names}: --host files run their own code on this machine; add --trust-host if you trust them")


def unproven_of(candidate: AnyCandidate) -> str:
    return UNPROVEN if isinstance(candidate, HostCandidate) else ""


def read_candidate(file: Path, *, host: bool = False) -> AnyCandidate:
    """Raises: UsageError."""
    try:
        source = read_file(file, MAX_SOURCE_BYTES).decode()
    except (OSError, ValueError) as exc:
        reason = exc.strerror if isinstance(exc, OSError) else NOT_UTF8 if isinstance(exc, UnicodeError) else exc
        raise UsageError(f"{file} cannot be read: {reason}") from exc
    if "\0" in source:  # as of UTF-16 without a byte-order mark
        raise UsageError(f"{file} cannot be read: {NOT_UTF8}")
    origin = Origin(policy="file", note=file.name)
    return HostCandidate(source=source, origin=origin) if host else Candidate.from_source(source, origin)


class ProfiledFile(FileResult):
    """The result of one file. `diagnosis`: None where the file has a fault. `profile`: None where no counters were read."""

    diagnosis: Diagnosis | None = None
    profile: Profile | None = None


class FileComparison(Record):
    """One file or two. `differences`: what changed from the first to the second, where both were profiled."""

    files: tuple[ProfiledFile, ...]
    differences: tuple[Difference, ...] = ()


def profile_files(files: Sequence[Path], task: GemmTask, settings: Settings) -> tuple[FileComparison, list[ProfileFailed]]:
    """The results of one file or two, and the errors of files whose profiling failed.

    Where no file can be profiled, a notice says why, and the diagnosis uses no counters. Raises: UsageError for a file that
    cannot be read or has no valid launch plan.
    """
    candidates = [read_candidate(file) for file in files]
    with Progress() as progress, open_sandbox_of(task.arch, settings, progress.emit) as sandbox:
        outcomes = dict(sandbox.build(candidates, task))
        profiler = _FileProfiler(sandbox, task, progress.emit)
        profiled = [
            profiler.take(str(file), candidates[position].id, outcomes[position]) for position, file in enumerate(files)
        ]
    profiles = [each.profile for each in profiled if each.profile]
    differences = explain(*profiles) if len(profiles) == 2 else ()
    return FileComparison(files=tuple(profiled), differences=differences), profiler.failures


class _FileProfiler:
    """Evaluates, profiles and diagnoses one file after another."""

    def __init__(self, sandbox: Sandbox, task: GemmTask, emit: Emit) -> None:
        self._sandbox, self._task, self._emit = sandbox, task, emit
        consequence = "the diagnosis rests on inspection and time alone"
        self._counters = CounterGuard(sandbox, emit, wanted=True, consequence=consequence)
        self.failures: list[ProfileFailed] = []

    def take(self, file: str, candidate_id: str, outcome: Built | Evaluation) -> ProfiledFile:
        built = outcome if isinstance(outcome, Built) else None
        evaluation = self._sandbox.evaluate(outcome, self._task, "quick") if isinstance(outcome, Built) else outcome
        result = ProfiledFile(file=file, candidate_id=candidate_id, evaluation=evaluation)
        if built is None or evaluation.failed:
            return result
        profile = self._profile(file, built)
        diagnosis = diagnose_built(built, self._task, self._sandbox.chip, evaluation, profile)
        return result.model_copy(update={"profile": profile, "diagnosis": diagnosis})

    def _profile(self, file: str, built: Built) -> Profile | None:
        if self._counters.able:
            self._emit(StageStarted(candidate_id=built.candidate.id, stage="profile"))
        try:
            return self._counters.profile(built, self._task)
        except ProfileFailed as exc:
            self.failures.append(ProfileFailed(f"{file} could not be profiled: {exc}", log=exc.log))
            return None
