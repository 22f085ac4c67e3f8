"""Evaluates kernel files in the sandbox, for `verify` and `bench`."""

from collections.abc import Sequence
from pathlib import Path

from cudal2_agent.agent.cli.render.progress import Progress
from cudal2_agent.agent.wiring.sandbox import open_sandbox_of
from cudal2_agent.contract.base import Record
from cudal2_agent.contract.errors import DeviceUnavailable, UsageError
from cudal2_agent.contract.records.build import Built
from cudal2_agent.contract.records.candidate import UNPROVEN, AnyCandidate, Candidate, HostCandidate, Origin
from cudal2_agent.contract.records.evaluation import Evaluation
from cudal2_agent.contract.records.task import GemmTask
from cudal2_agent.contract.settings.settings import Settings
from cudal2_agent.sandbox.local import LocalSandbox


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


def evaluate_files(files: Sequence[Path], task: GemmTask, settings: Settings, *, timed: bool, host: bool) -> list[FileResult]:
    """One result per file, in order.

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


def _evaluate(sandbox: LocalSandbox, outcome: Built | Evaluation, task: GemmTask, timed: bool) -> Evaluation:
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


def read_candidate(file: Path, *, host: bool) -> AnyCandidate:
    """Raises: UsageError."""
    try:
        source = file.read_text(encoding="utf-8")
    except (OSError, UnicodeDecodeError) as exc:
        reason = exc.strerror if isinstance(exc, OSError) else "it is not UTF-8 text"
        raise UsageError(f"{file} cannot be read: {reason}") from exc
    origin = Origin(policy="file", note=file.name)
    return HostCandidate(source=source, origin=origin) if host else Candidate.from_source(source, origin)
