"""Kernel files through the sandbox, for `verify` and `bench`."""

from collections.abc import Sequence
from pathlib import Path

from agent.box import open_box
from agent.cli.answer import speedup_lines
from agent.cli.progress import Progress
from agent.ranking import proven
from agent.summary import message_of, proof_of
from contract.base import Record
from contract.build import Built
from contract.candidate import UNPROVEN, AnyCandidate, Candidate, HostCandidate, Origin
from contract.errors import DeviceUnavailable, UsageError
from contract.evaluation import NOT_COVERED, Evaluation, Measured, Unmeasured, Wrong
from contract.settings import Settings
from contract.speedup import median_us
from contract.task import GemmTask
from sandbox.local import LocalSandbox


class FileResult(Record):
    """What became of one file. `unproven`: why its result proves less than it says; empty where it does not."""

    file: str
    candidate_id: str
    evaluation: Evaluation
    unproven: str = ""

    @property
    def passed(self) -> bool:
        """Whether it was executed and found right."""
        return proven(self.evaluation)


def evaluate_files(files: Sequence[Path], task: GemmTask, settings: Settings, *, timed: bool, host: bool) -> list[FileResult]:
    """One result a file, in order.

    Raises: UsageError for a file that cannot be read or has no valid launch plan; DeviceUnavailable where times are asked
    and nothing can be executed.
    """
    require_trust(files, settings, host=host)
    candidates = [read_candidate(file, host=host) for file in files]
    with Progress() as progress, open_box(task, settings, progress.emit, trust_host=host) as sandbox:
        if timed and not sandbox.can_measure:
            raise DeviceUnavailable(
                f"bench times kernels, and there is no {task.arch} GPU to run them on (device {settings.device}); "
                "verify proves kernels without one"
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
    """Raises: UsageError where host candidates are to be run and the user has not said that they are trusted."""
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


def print_verdict(result: FileResult, as_json: bool) -> None:
    if as_json:
        print(result.model_dump_json())
        return
    evaluation = result.evaluation
    # The test that failed tells the rest, below and in full.
    print(f"{result.file}: {'wrong' if isinstance(evaluation, Wrong) else verdict(evaluation)}{mark_of(result)}")
    tests = getattr(evaluation, "tests", ())
    for test in tests:
        mark = "not run" if test.name == NOT_COVERED else "passed" if test.passed else "FAILED"
        again = "" if test.passed or test.seed is None else f" (again with --seed {test.seed})"
        print(f"  {mark:<7}  {test.tier}/{test.name}  {test.message}{again}".rstrip())
    inspection = getattr(evaluation, "inspection", None)
    for kernel in inspection.kernels if inspection else ():
        smem_bytes = kernel.static_smem_bytes + kernel.dynamic_smem_bytes
        resident = f", {kernel.ctas_per_sm} CTAs an SM" if kernel.threads else ""  # a host candidate's launch is its own
        print(
            f"  {kernel.entry}: {kernel.registers} registers, {kernel.spill_store_bytes} bytes spilled, "
            f"{smem_bytes} bytes of shared memory{resident}"
        )


def print_times(results: Sequence[FileResult], as_json: bool) -> None:
    if as_json:
        print(f"[{', '.join(result.model_dump_json() for result in results)}]")
        return
    for result in results:
        print(f"{result.file}: {verdict(result.evaluation)}{mark_of(result)}")
        if isinstance(result.evaluation, Measured):
            print("\n".join(speedup_lines(result.evaluation)))


def mark_of(result: FileResult) -> str:
    """What stands behind a verdict that proves less than it says."""
    return f" ({result.unproven})" if result.unproven else ""


def verdict(evaluation: Evaluation) -> str:
    if isinstance(evaluation, Measured):
        return f"verified, {median_us(evaluation.timing):.2f} us measured"
    if isinstance(evaluation, Unmeasured):
        return f"{'compiles, ' if evaluation.verified_by == 'nothing' else ''}{proof_of(evaluation)}"
    return f"{evaluation.status.replace('_', ' ')}: {message_of(evaluation)}"
