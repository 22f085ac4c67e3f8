"""Trajectories as a data set of flashinfer-bench: definitions, workloads, solutions and traces (docs/guide/training.md).

Covered: kernels from device code with a launch plan; every outcome of a step that its statuses can express.
Not covered: host candidates; steps without a time, whose kernels no GPU ran; times that earn no reward because they are
implausible or unproved. They are counted as skipped.
"""

from collections.abc import Iterable, Iterator, Mapping
from contextlib import suppress
from pathlib import Path
from typing import NamedTuple

from cudal2_agent.contract.base import Record
from cudal2_agent.contract.plan.chip import Chip
from cudal2_agent.contract.records.candidate import AnyCandidate, Candidate, HostCandidate
from cudal2_agent.contract.records.evaluation import AUTOTUNED, Measured
from cudal2_agent.contract.records.module_task import gemm
from cudal2_agent.contract.records.task import GemmTask
from cudal2_agent.contract.records.trajectory import Trajectory
from cudal2_agent.contract.reward.speedup import ratio_over
from cudal2_agent.contract.whole_file import new_folder
from cudal2_agent.policies.exports.counts import NothingToWrite
from cudal2_agent.policies.exports.flashinfer.bench_records import BenchDefinition, BenchSolution, BenchTrace, BenchWorkload
from cudal2_agent.policies.exports.flashinfer.bench_solutions import OP, definition_of, solution_of, workload_of
from cudal2_agent.policies.exports.flashinfer.bench_traces import Attempted, evaluation_of, status_of


class BenchCounts(Record):
    """Number of files and lines of a data set. `skipped`: steps that it cannot express."""

    definitions: int = 0
    workloads: int = 0
    solutions: int = 0
    traces: int = 0
    skipped: int = 0


def write_flashinfer(
    trajectories: Iterable[Trajectory], folder: Path, headers: Mapping[str, str], *, every: bool = False
) -> BenchCounts:
    """Write a data set into a new or empty folder, which appears whole or not at all; without a trace, not at all.

    `headers`: device headers by the name under which sources include them, such as `cudal2/mma.cuh`.
    `every`: all steps; otherwise the fastest kernel of each task and environment. Memory holds one trajectory, and the
    fastest kernels.
    Raises: UsageError where the folder is in use or cannot be written.
    """
    counts = BenchCounts()
    with suppress(NothingToWrite), new_folder(folder) as staging:
        files = _DatasetFiles(staging, headers)
        skipped = 0
        if every:
            for each in _attempts(trajectories):
                skipped += not files.add(each)
        else:
            fastest: dict[tuple[str, str], tuple[float, Attempted]] = {}
            for trajectory in trajectories:
                skipped += _keep_fastest(trajectory, fastest)
            for _, each in fastest.values():
                skipped += not files.add(each)
        counts = files.counts(skipped)
        if not counts.traces:
            raise NothingToWrite
    return counts


def _attempts(trajectories: Iterable[Trajectory]) -> Iterator[Attempted]:
    return (Attempted(trajectory.run, step) for trajectory in trajectories for step in trajectory.steps)


def _keep_fastest(trajectory: Trajectory, fastest: dict[tuple[str, str], tuple[float, Attempted]]) -> int:
    """Update the fastest kernels; the number of steps that no data set can express.

    Of the measurements of a candidate the last one counts, which is the most careful one.
    """
    task, skipped = trajectory.run.task, 0
    last: dict[str, Attempted] = {}
    for step in trajectory.steps:
        each = Attempted(trajectory.run, step)
        if status_of(each) is None or isinstance(step.candidate, HostCandidate):
            skipped += 1
        elif isinstance(step.evaluation, Measured):
            last[step.candidate.id] = each
    for each in last.values():
        assert isinstance(each.step.evaluation, Measured)
        key = task.id, each.step.evaluation.environment.key
        ratio = ratio_over(each.step.evaluation, AUTOTUNED) or 0.0
        if key not in fastest or ratio > fastest[key][0]:
            fastest[key] = ratio, each
    return skipped


def write_solutions(
    kernels: Iterable[tuple[GemmTask, Chip, Candidate]], folder: Path, headers: Mapping[str, str]
) -> BenchCounts:
    """As `write_flashinfer`, for kernels without traces: definitions, workloads and solutions. Raises: UsageError."""
    with new_folder(folder) as staging:
        files, skipped = _DatasetFiles(staging, headers), 0
        for task, chip, candidate in kernels:
            skipped += files.add_solution(task, chip, candidate) is None
        return files.counts(skipped)


class _Named(NamedTuple):
    definition: BenchDefinition
    workload: BenchWorkload
    solution: BenchSolution


class _DatasetFiles:
    """The files of a data set, in the folders in which flashinfer-bench looks for them. Every object is written once."""

    def __init__(self, root: Path, headers: Mapping[str, str]) -> None:
        self._root, self._headers = root, headers
        self._definitions: set[str] = set()
        self._workloads: set[str] = set()
        self._solutions: set[str] = set()
        self._traces = 0

    def add(self, each: Attempted) -> bool:
        """Write a step with what it refers to; whether a data set can express it."""
        status = status_of(each)
        named = (
            None
            if status is None
            else self.add_solution(gemm(each.run.task, "this export"), each.run.chip, each.step.candidate)
        )
        if named is None or status is None:
            return False
        trace = BenchTrace(
            definition=named.definition.name,
            workload=named.workload,
            solution=named.solution.name,
            evaluation=evaluation_of(each, status),
        )
        self._append("traces", trace)
        self._traces += 1
        return True

    def add_solution(self, task: GemmTask, chip: Chip, candidate: AnyCandidate) -> "_Named | None":
        """Write a kernel with its definition and its workload; None where it is no plain product, or has no host launcher."""
        if task.bias or task.activation is not None:
            return None
        solution = solution_of(task, chip, candidate, self._headers)
        if solution is None:
            return None
        definition, workload = definition_of(task), workload_of(task)
        if definition.name not in self._definitions:
            self._definitions.add(definition.name)
            self._write(f"definitions/{OP}/{definition.name}.json", definition)
        if workload.uuid not in self._workloads:
            self._workloads.add(workload.uuid)
            self._append("workloads", BenchTrace(definition=definition.name, workload=workload))
        if solution.name not in self._solutions:
            self._solutions.add(solution.name)
            self._write(f"solutions/{OP}/{definition.name}/{solution.name}.json", solution)
        return _Named(definition, workload, solution)

    def counts(self, skipped: int) -> BenchCounts:
        return BenchCounts(
            definitions=len(self._definitions),
            workloads=len(self._workloads),
            solutions=len(self._solutions),
            traces=self._traces,
            skipped=skipped,
        )

    def _write(self, name: str, record: Record) -> None:
        path = self._root / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(record.model_dump_json(exclude_none=True, indent=2) + "\n", encoding="utf-8", newline="")

    def _append(self, kind: str, trace: BenchTrace) -> None:
        path = self._root / kind / OP / f"{trace.definition}.jsonl"
        path.parent.mkdir(parents=True, exist_ok=True)
        with path.open("a", encoding="utf-8", newline="") as file:
            file.write(trace.model_dump_json(exclude_none=True) + "\n")
