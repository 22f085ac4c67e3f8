"""Kernel files through the sandbox and the profiler, for `profile`."""

from collections.abc import Sequence
from pathlib import Path

from agent.cli.files import FileResult, read_candidate, require_trust, unproven_of
from agent.cli.render.progress import Progress
from agent.wiring.sandbox import open_sandbox_for
from contract.base import Record
from contract.build import Built
from contract.diagnosis import Diagnosis
from contract.errors import ProfileFailed, ProfilerUnavailable
from contract.evaluation import Evaluation, Measured, Unmeasured
from contract.events import Emit, Notice, StageStarted
from contract.profile import Difference, Profile
from contract.settings import Settings
from contract.task import GemmTask
from sandbox.diagnosis.diagnosis import diagnose_built
from sandbox.diagnosis.differences import explain
from sandbox.local import LocalSandbox


class ProfiledFile(FileResult):
    """What became of one file. `diagnosis` is None where it has a fault; `profile` where no counters were read."""

    diagnosis: Diagnosis | None = None
    profile: Profile | None = None


class Comparison(Record):
    """One file or two; `differences` lead from the first to the second where both were profiled."""

    files: tuple[ProfiledFile, ...]
    differences: tuple[Difference, ...] = ()


def profile_files(
    files: Sequence[Path], task: GemmTask, settings: Settings, *, host: bool
) -> tuple[Comparison, list[ProfileFailed]]:
    """One file or two, and why any that passed has no profile although profiling works here.

    What makes profiling impossible here is a notice: the diagnosis does without. Raises: UsageError for a file that cannot be
    read or has no valid launch plan.
    """
    require_trust(files, settings, host=host)
    candidates = [read_candidate(file, host=host) for file in files]
    with Progress() as progress, open_sandbox_for(task, settings, progress.emit, trust_host=host) as sandbox:
        outcomes = dict(sandbox.build(candidates, task))
        bench = _Bench(sandbox, task, progress.emit)
        profiled = [
            bench.take(str(file), candidates[position].id, outcomes[position]).model_copy(
                update={"unproven": unproven_of(candidates[position])}
            )
            for position, file in enumerate(files)
        ]
    profiles = [each.profile for each in profiled if each.profile]
    differences = explain(*profiles) if len(profiles) == 2 else ()
    return Comparison(files=tuple(profiled), differences=differences), bench.failures


class _Bench:
    """Takes one file after another through evaluation, profile and diagnosis."""

    def __init__(self, sandbox: LocalSandbox, task: GemmTask, emit: Emit) -> None:
        self._sandbox, self._task, self._emit = sandbox, task, emit
        self._able = True
        self.failures: list[ProfileFailed] = []

    def take(self, file: str, candidate_id: str, outcome: Built | Evaluation) -> ProfiledFile:
        built = outcome if isinstance(outcome, Built) else None
        evaluation = self._sandbox.evaluate(outcome, self._task, "quick") if isinstance(outcome, Built) else outcome
        result = ProfiledFile(file=file, candidate_id=candidate_id, evaluation=evaluation)
        if built is None or not isinstance(evaluation, Measured | Unmeasured):
            return result
        profile = self._profile(file, built)
        diagnosis = diagnose_built(built, self._task, self._sandbox.chip, evaluation, profile)
        return result.model_copy(update={"profile": profile, "diagnosis": diagnosis})

    def _profile(self, file: str, built: Built) -> Profile | None:
        if not self._able:
            return None
        self._emit(StageStarted(candidate_id=built.candidate.id, stage="profile"))
        try:
            return self._sandbox.profile(built, self._task)
        except ProfilerUnavailable as exc:
            self._able = False
            self._emit(Notice(message=f"no counters were read: {exc}"))
        except ProfileFailed as exc:
            self.failures.append(ProfileFailed(f"{file} could not be profiled: {exc}", log=exc.log))
        return None
