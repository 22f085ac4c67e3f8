"""Profiles one candidate or a kernel of cuBLASLt: `ncu` in front of a process of this project (`child.py`), both confined.

Covered: no tool, no permission, an incompatible tool; a candidate that crashes or hangs under it; metrics that this version
lacks; a truncated table. The calling process creates no CUDA context.
Not covered: a GPU that another program uses at the same time; the counters of the memory system include its work.
"""

import logging
import sys
import tempfile
import time
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

from cudal2_agent.contract.errors import ProfileFailed, ProfilerUnavailable, WorkerError
from cudal2_agent.contract.records.build import Built
from cudal2_agent.contract.records.candidate import AnyCandidate, Candidate, HostCandidate
from cudal2_agent.contract.records.module_task import Task
from cudal2_agent.contract.records.profile import LaunchProfile, Profile
from cudal2_agent.contract.settings.options import ProfileOptions, WorkerOptions
from cudal2_agent.sandbox.profiling.metric_set import MetricSet, load_metric_set
from cudal2_agent.sandbox.profiling.ncu import command_of, complaints_in, find_ncu, ncu_version, unavailable, unknown_metrics
from cudal2_agent.sandbox.profiling.reading import Unreadable, read_launches
from cudal2_agent.sandbox.profiling.request import LibraryKernel, ProfileRequest, StageReport, Subject, last_report
from cudal2_agent.sandbox.workers.process import ChildExit, Limits, network_isolated, run

OPERANDS_SEED = 4  # the same for all candidates, so that their counters compare
FILE_BYTES = 4 * 1024**3
MAX_TABLE_BYTES = 16 * 1024**2
TAIL_CHARACTERS = 16 * 1024
_REQUEST, _REPORT, _TABLE = "request.json", "report.jsonl", "counters.csv"

logger = logging.getLogger(__name__)


@dataclass(frozen=True)
class NcuRun:
    """One run of the tool: how it ended, the child's last report, the table, and all messages."""

    finished: ChildExit
    report: StageReport | None
    table: str
    output: str

    @property
    def stage(self) -> str:
        return self.report.stage if self.report else "none"

    @property
    def complaints(self) -> list[str]:
        return complaints_in(self.table, self.output)

    @property
    def log(self) -> str:
        return f"{self.output}\n{self.table}"[-TAIL_CHARACTERS:]


class Profiler:
    """One GPU's profiler. A reason why nothing can be profiled here is found once; every later call then fails at once."""

    def __init__(self, options: ProfileOptions, worker: WorkerOptions, environment: Mapping[str, str] | None = None) -> None:
        self._options = options
        self._worker = worker
        # Decimal points and English messages, whatever the user's language.
        self._environment = {**(environment or {}), "LC_ALL": "C"}
        self._lacking: ProfilerUnavailable | None = None
        self._unknown: set[str] = set()
        self._absent: set[str] = set()
        self._isolated = True

    def profile(self, built: Built, task: Task) -> Profile:
        """Counters of one run of a verified candidate; none of a host candidate. Raises: ProfilerUnavailable, ProfileFailed."""
        if isinstance(built.candidate, HostCandidate):  # its own CPU code would run in no jail here
            raise ProfileFailed("a host candidate is not profiled")
        return self._guarded(built, task)

    def profile_library(self, detail: str, task: Task) -> Profile:
        """The same of cuBLASLt's kernel with this configuration. Raises: as `profile`."""
        return self._guarded(LibraryKernel(detail=detail), task)

    def _guarded(self, subject: Subject, task: Task) -> Profile:
        if self._lacking is not None:
            raise ProfilerUnavailable(str(self._lacking), log=self._lacking.log)
        try:
            return self._profile(subject, task)
        except ProfilerUnavailable as exc:
            self._lacking = exc
            raise
        except WorkerError as exc:
            self._lacking = ProfilerUnavailable(f"Nsight Compute cannot be started: {exc}", log=exc.log)
            raise self._lacking from exc
        except OSError as exc:
            raise ProfileFailed(f"its scratch folder cannot be used ({exc.strerror})") from exc

    def _profile(self, subject: Subject, task: Task) -> Profile:
        begin_s = time.monotonic()
        ncu = find_ncu(self._options.ncu)
        version, metrics = ncu_version(ncu), load_metric_set(task.arch)
        launches = _launches(self._counted(ncu, metrics, subject, task), metrics, subject)
        self._tell_absent(set(metrics.metrics).difference(*(launch.metrics for launch in launches)))
        return Profile(tool=f"ncu {version}", metric_set=metrics.name, launches=launches, seconds=time.monotonic() - begin_s)

    def _counted(self, ncu: str, metrics: MetricSet, subject: Subject, task: Task) -> NcuRun:
        """The first run that nothing but the candidate can have spoilt.

        It is repeated without the metrics that this ncu lacks, and once without network isolation. The isolation takes away
        root's right to the counters, and the loopback that ncu may communicate through.
        """
        self._isolated = self._isolated and network_isolated()
        while True:
            asked = {spec.metric for spec in metrics.metrics.values()} - self._unknown
            if not asked:
                raise ProfilerUnavailable(f"{ncu} has no metric of the set {metrics.name}; install a newer Nsight Compute")
            attempt = self._attempt(ncu, sorted(asked), subject, task)
            reason = unavailable(attempt.complaints) or _not_ours(attempt)
            if reason is None and (unknown := unknown_metrics(attempt.complaints, asked)):
                logger.warning("this ncu has no %s; the profile goes without", ", ".join(sorted(unknown)))
                self._unknown |= unknown
            elif reason is None:
                return attempt
            elif not self._isolated:
                raise ProfilerUnavailable(reason, log=attempt.log)
            else:
                logger.warning("profiling runs without network isolation: with it, %s", reason)
                self._isolated = False

    def _tell_absent(self, absent: set[str]) -> None:
        """Warn once about metrics without values; newer versions skip a name that they do not know."""
        if new := absent - self._absent:
            logger.warning("not counted here: %s", ", ".join(sorted(new)))
            self._absent |= new

    def _attempt(self, ncu: str, asked: list[str], subject: Subject, task: Task) -> NcuRun:
        limit_s = self._options.timeout_s
        with tempfile.TemporaryDirectory(prefix="cudal2-profile-", ignore_cleanup_errors=True) as folder:
            scratch = Path(folder)
            request = ProfileRequest(
                subject=subject, task=task, device=self._worker.device, seed=OPERANDS_SEED, limit_s=limit_s
            )
            (scratch / _REQUEST).write_text(request.model_dump_json(), encoding="utf-8")
            python = self._worker.python or sys.executable
            program = [python, "-P", "-m", "cudal2_agent.sandbox.profiling.child", _REQUEST, _REPORT]
            finished = run(
                command_of(ncu, asked, _candidate(subject), scratch / _TABLE, program),
                scratch=scratch,
                limits=Limits(wall_s=limit_s, file_bytes=FILE_BYTES, network=not self._isolated),
                extra_environment=self._environment,
            )
            report = last_report(_text(scratch / _REPORT))
            table = _text(scratch / _TABLE)
        output = b"\n".join((finished.stdout, finished.stderr)).decode(errors="replace")
        return NcuRun(finished, report, table, output)


def _candidate(subject: Subject) -> AnyCandidate | None:
    return subject.candidate if isinstance(subject, Built) else None


def _not_ours(attempt: NcuRun) -> str | None:
    """Why the run failed before it reached the candidate; None where it did reach it."""
    if attempt.report is None:
        ended = "printed nothing in time" if attempt.finished.timed_out else "did not start our process"
        return f"Nsight Compute {ended}; see its log"
    return attempt.report.message if attempt.report.fault == "device" else None


def _launches(attempt: NcuRun, metrics: MetricSet, subject: Subject) -> tuple[LaunchProfile, ...]:
    """The counted launches, as many as the plan has. Raises: ProfileFailed."""
    if attempt.report is not None and attempt.report.fault:
        raise ProfileFailed(f"{attempt.stage}: {attempt.report.message}", log=attempt.log)
    if attempt.finished.timed_out:
        seconds = f"{attempt.finished.seconds:.0f} s"
        raise ProfileFailed(f"no end after {seconds} in stage {attempt.stage}; raise profile_timeout_s", log=attempt.log)
    if attempt.stage != "done":
        ended = "; ".join([f"its process ended in stage {attempt.stage}", *attempt.complaints])
        raise ProfileFailed(ended, log=attempt.log)
    try:
        launches = read_launches(attempt.table, metrics)
    except Unreadable as exc:
        raise ProfileFailed(f"ncu's table cannot be read: {exc}", log=attempt.log) from exc
    wanted = _wanted(subject)
    if not launches or len(launches) != (wanted or len(launches)):
        raise ProfileFailed(f"ncu counted {len(launches)} of {wanted or 'its'} launches", log=attempt.log)
    if not any(launch.metrics for launch in launches):
        raise ProfileFailed("ncu gave no value of any metric", log=attempt.log)
    return launches


def _wanted(subject: Subject) -> int | None:
    """Launches of a candidate's kernels, those of repeats each time; None of a library's kernel."""
    if not isinstance(subject, Built) or not isinstance(subject.candidate, Candidate):
        return None
    return len(subject.candidate.plan.kernels if subject.plan is None else subject.plan.launches)


def _text(path: Path) -> str:
    """A file that the candidate's process could have written: its beginning; empty where it is not a regular file."""
    if path.is_symlink() or not path.is_file():
        return ""
    with path.open("rb") as file:
        return file.read(MAX_TABLE_BYTES).decode(errors="replace")
