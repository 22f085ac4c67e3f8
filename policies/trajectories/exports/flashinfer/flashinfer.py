"""Trajectories as a data set of flashinfer-bench: definitions, workloads, solutions and traces (docs/flashinfer_bench.md).

Covered: kernels from device code with a launch plan; every outcome of a step that its statuses can express.
Not covered: host candidates; steps without a time, whose kernels no GPU ran; times that earn no reward because they are
implausible or unproved. They are counted as skipped.
"""

import math
import os
import re
import shutil
import tempfile
import uuid
from collections.abc import Iterable, Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import NamedTuple

from contract.base import Record, digest
from contract.candidate import AnyCandidate, Candidate, HostCandidate
from contract.errors import PlanError, UsageError
from contract.evaluation import (
    AUTOTUNED,
    CompileFailed,
    Crashed,
    Evaluation,
    Measured,
    Rejected,
    TestResult,
    TimedOut,
    Unmeasured,
    Wrong,
)
from contract.reward import beyond_roofline, confirmed
from contract.speedup import baseline_of, median_us, ratio_over
from contract.task import AccumulatorType, ElementType, GemmTask, Layout
from contract.trajectory import RunRecord, Step, Trajectory
from policies.trajectories.exports.flashinfer.bench_records import (
    BenchAxis,
    BenchBuild,
    BenchCorrectness,
    BenchDefinition,
    BenchEnvironment,
    BenchEvaluation,
    BenchInput,
    BenchPerformance,
    BenchSolution,
    BenchSource,
    BenchStatus,
    BenchTensor,
    BenchTrace,
    BenchWorkload,
)
from policies.trajectories.exports.flashinfer.host_launcher import (
    DEVICE,
    ENTRY_POINT,
    KERNEL,
    LAUNCHER,
    OUTPUT,
    arch_list,
    device_text,
    launcher_text,
    lost_flags,
)

AUTHOR = "cudal2-agent"
_OP = "gemm"
_DTYPE: dict[ElementType, str] = {ElementType.F16: "float16", ElementType.BF16: "bfloat16"}
_PRODUCT = {Layout.NN: "A, B", Layout.TN: "A, B.T"}
_INCLUDE = re.compile(r"^[ \t]*#[ \t]*include[ \t]*[<\"]([^>\"]+)[>\"]", re.MULTILINE)


class BenchCounts(Record):
    """Number of files and lines of a data set. `skipped`: steps that it cannot express."""

    definitions: int = 0
    workloads: int = 0
    solutions: int = 0
    traces: int = 0
    skipped: int = 0


class _Attempted(NamedTuple):
    run: RunRecord
    step: Step


def write_flashinfer(
    trajectories: Iterable[Trajectory], folder: Path, headers: Mapping[str, str], *, every: bool = False
) -> BenchCounts:
    """Write a data set into a new or empty folder, which appears whole or not at all.

    `headers`: device headers by the name under which sources include them, such as `cudal2/mma.cuh`.
    `every`: all steps; otherwise the fastest kernel of each task and environment. Memory holds one trajectory, and the
    fastest kernels.
    Raises: UsageError where the folder is in use or cannot be written.
    """
    with _new_folder(folder) as staging:
        files = _DatasetFiles(staging, headers)
        skipped = 0
        if every:
            for each in _attempts(trajectories):
                skipped += not files.add(each)
        else:
            fastest: dict[tuple[str, str], tuple[float, _Attempted]] = {}
            for trajectory in trajectories:
                skipped += _keep_fastest(trajectory, fastest)
            for _, each in fastest.values():
                skipped += not files.add(each)
        return files.counts(skipped)


def _attempts(trajectories: Iterable[Trajectory]) -> Iterator[_Attempted]:
    return (_Attempted(trajectory.run, step) for trajectory in trajectories for step in trajectory.steps)


def _keep_fastest(trajectory: Trajectory, fastest: dict[tuple[str, str], tuple[float, _Attempted]]) -> int:
    """Update the fastest kernels; the number of steps that no data set can express.

    Of the measurements of a candidate the last one counts, which is the most careful one.
    """
    task, skipped = trajectory.run.task, 0
    last: dict[str, _Attempted] = {}
    for step in trajectory.steps:
        each = _Attempted(trajectory.run, step)
        if _status(each) is None or isinstance(step.candidate, HostCandidate):
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


class _DatasetFiles:
    """The files of a data set, in the folders in which flashinfer-bench looks for them. Every object is written once."""

    def __init__(self, root: Path, headers: Mapping[str, str]) -> None:
        self._root, self._headers = root, headers
        self._definitions: set[str] = set()
        self._workloads: set[str] = set()
        self._solutions: set[str] = set()
        self._traces = 0

    def add(self, each: _Attempted) -> bool:
        """Write a step with what it refers to; whether a data set can express it."""
        solution, status = solution_of(each.run, each.step.candidate, self._headers), _status(each)
        if solution is None or status is None:
            return False
        definition, workload = definition_of(each.run.task), workload_of(each.run.task)
        if definition.name not in self._definitions:
            self._definitions.add(definition.name)
            self._write(f"definitions/{_OP}/{definition.name}.json", definition)
        if workload.uuid not in self._workloads:
            self._workloads.add(workload.uuid)
            self._append("workloads", BenchTrace(definition=definition.name, workload=workload))
        if solution.name not in self._solutions:
            self._solutions.add(solution.name)
            self._write(f"solutions/{_OP}/{definition.name}/{solution.name}.json", solution)
        evaluation = _evaluation(each, status)
        self._append(
            "traces",
            BenchTrace(definition=definition.name, workload=workload, solution=solution.name, evaluation=evaluation),
        )
        self._traces += 1
        return True

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
        path = self._root / kind / _OP / f"{trace.definition}.jsonl"
        path.parent.mkdir(parents=True, exist_ok=True)
        with path.open("a", encoding="utf-8", newline="") as file:
            file.write(trace.model_dump_json(exclude_none=True) + "\n")


def definition_of(task: GemmTask) -> BenchDefinition:
    """The GEMM of a task for every M: N and K belong to the weights and are constant, as in flashinfer-bench's own GEMMs."""
    dtype = _DTYPE[task.element]
    b_shape = ("K", "N") if task.layout is Layout.NN else ("N", "K")
    kind = f"{task.element} elements, {task.accumulate} accumulation, layout {task.layout}"
    return BenchDefinition.model_validate(
        {
            "name": f"{_OP}_{task.layout}_{task.element}_{task.accumulate}_n{task.n}_k{task.k}",
            "axes": {"M": _axis(None), "N": _axis(task.n), "K": _axis(task.k)},
            "inputs": {
                "A": BenchTensor.model_validate({"shape": ("M", "K"), "dtype": dtype}),
                "B": BenchTensor.model_validate({"shape": b_shape, "dtype": dtype}),
            },
            "outputs": {OUTPUT: BenchTensor.model_validate({"shape": ("M", "N"), "dtype": dtype})},
            "reference": f"import torch\n\n\ndef run(A, B):\n    return torch.matmul({_PRODUCT[task.layout]})\n",
            "tags": (f"element:{task.element}", f"accumulate:{task.accumulate}", f"layout:{task.layout}"),
            "description": f"Matrix product: {kind}.{_half_note(task)}",
        }
    )


def _half_note(task: GemmTask) -> str:
    if task.accumulate is AccumulatorType.F32:
        return ""
    return " Sums in f16 differ from the reference by more than sums in f32 do; judge them with a wider tolerance."


def _axis(value: int | None) -> BenchAxis:
    return BenchAxis(type="var") if value is None else BenchAxis(type="const", value=value)


def workload_of(task: GemmTask) -> BenchWorkload:
    """The M of a task, with random inputs. Equal tasks on other chips and in other timing modes are one workload."""
    identity = digest([definition_of(task).name, task.m], length=32)
    return BenchWorkload(axes={"M": task.m}, inputs={"A": BenchInput(), "B": BenchInput()}, uuid=str(uuid.UUID(hex=identity)))


def solution_of(run: RunRecord, candidate: AnyCandidate, headers: Mapping[str, str]) -> BenchSolution | None:
    """A candidate with a host launcher for the run's task and chip; None where none can be written."""
    if not isinstance(candidate, Candidate):
        return None
    try:
        launcher = launcher_text(candidate, run.task, run.chip)
    except PlanError:
        return None
    definition = definition_of(run.task).name
    chip = re.sub(r"[^a-z0-9]+", "-", run.chip.name.lower())
    texts = {
        LAUNCHER: launcher,
        DEVICE: device_text(candidate, run.task.arch),
        KERNEL: candidate.source,
        **_included(candidate.source, headers),
    }
    return BenchSolution(
        name=f"{definition}_m{run.task.m}_{chip}_{run.task.arch}_{candidate.id}",
        definition=definition,
        author=f"{AUTHOR} ({candidate.origin.policy})",
        spec=BenchBuild(target_hardware=("cuda", run.chip.name, run.task.arch.value), entry_point=ENTRY_POINT),
        sources=tuple(BenchSource(path=path, content=text) for path, text in texts.items()),
        description=_description(candidate, run, headers),
    )


def _included(source: str, headers: Mapping[str, str]) -> dict[str, str]:
    """The headers that a source includes, directly or through others, in order of their names."""
    found: dict[str, str] = {}
    waiting = _INCLUDE.findall(source)
    while waiting:
        name = waiting.pop()
        if name in headers and name not in found:
            found[name] = headers[name]
            waiting += _INCLUDE.findall(headers[name])
    return dict(sorted(found.items()))


def _description(candidate: Candidate, run: RunRecord, headers: Mapping[str, str]) -> str:
    """How the kernel was measured, and what differs where flashinfer-bench builds it."""
    task = run.task
    parts = [
        f"{candidate.label}. Verified and timed by {AUTHOR} for M = {task.m} on {run.chip.name}; it refuses other shapes.",
        f"It was compiled by {candidate.compiler}; flashinfer-bench compiles it by nvcc with TVM-FFI's flags, so that the"
        f" machine code and the time may differ. Set TVM_FFI_CUDA_ARCH_LIST={arch_list(task.arch)} for {task.arch}.",
    ]
    if lost := lost_flags(candidate):
        parts.append(f"It was measured with flags that flashinfer-bench cannot pass: {' '.join(lost)}.")
    if missing := sorted(_missing(candidate.source, headers)):
        parts.append(f"It includes headers that are not part of this solution: {', '.join(missing)}.")
    return " ".join(parts)


def _missing(source: str, headers: Mapping[str, str]) -> set[str]:
    """The headers of CUTLASS, and of this project where they were not given."""
    return {
        name for name in _INCLUDE.findall(source) if name.startswith(("cute/", "cutlass/", "cudal2/")) and name not in headers
    }


def _status(each: _Attempted) -> BenchStatus | None:
    """The status that says the same; None for steps whose kernels no GPU ran, and for times that are not to be believed."""
    evaluation: Evaluation = each.step.evaluation
    match evaluation:
        case Measured():
            implausible = beyond_roofline(evaluation, each.run.task, each.run.chip)
            return "PASSED" if confirmed(evaluation, each.step.candidate.origin) and not implausible else None
        case Wrong():
            return "INCORRECT_NUMERICAL" if _is_numerical(evaluation.test) else "RUNTIME_ERROR"
        case Crashed():
            return "RUNTIME_ERROR"
        case TimedOut():
            return "TIMEOUT"
        case Rejected() | CompileFailed():
            return "COMPILE_ERROR"
        case Unmeasured():
            return None


def _is_numerical(test: TestResult) -> bool:
    """Whether a failed test compared numbers. Others found a race, a write outside the operands, an unwritten output."""
    return math.isnan(test.worst) or test.worst > 0


def _evaluation(each: _Attempted, status: BenchStatus) -> BenchEvaluation:
    evaluation = each.step.evaluation
    lines = [evaluation.headline, f"{AUTHOR}: step {each.step.index} of run {each.step.run_id}"]
    if isinstance(evaluation, CompileFailed):
        lines.append(evaluation.log)
    if isinstance(evaluation, Measured):
        lines.append(f"timing mode: {evaluation.mode}; reference: {AUTOTUNED}")
    return BenchEvaluation(
        status=status,
        environment=_environment(each),
        timestamp=each.step.created_at.isoformat(),
        log="\n".join(lines),
        correctness=_correctness(evaluation, status),
        performance=_performance(evaluation) if isinstance(evaluation, Measured) else None,
    )


def _environment(each: _Attempted) -> BenchEnvironment:
    """Where the step was measured; for a step without a time, the chip of the run and the versions of its packages."""
    if not isinstance(each.step.evaluation, Measured):
        return BenchEnvironment(hardware=each.run.chip.name, libs=dict(sorted(each.run.versions.items())))
    found = each.step.evaluation.environment
    libs = {"cublas": found.cublas, "cuda": found.cuda, "driver": found.driver, "nvrtc": found.nvrtc, "python": found.python}
    return BenchEnvironment(hardware=found.gpu, libs=libs | ({"torch": found.torch} if found.torch else {}))


def _correctness(evaluation: Evaluation, status: BenchStatus) -> BenchCorrectness | None:
    """The largest error as a share of its bound. The absolute and the relative one are not recorded.

    They are NaN for a wrong kernel, and left out for a right one: flashinfer-bench finds no trace whose errors are NaN.
    """
    if isinstance(evaluation, Measured):
        worst = max((test.worst for test in evaluation.tests), default=0.0)
        times = {timing.name: median_us(timing) / 1e3 for timing in evaluation.baselines}
        return BenchCorrectness(extra={"error_over_bound": worst, "mode": evaluation.mode.value, "baselines_ms": times})
    if isinstance(evaluation, Wrong) and status == "INCORRECT_NUMERICAL":
        unknown = float("nan")
        return BenchCorrectness(
            max_relative_error=unknown,
            max_absolute_error=unknown,
            extra={"error_over_bound": evaluation.test.worst, "test": f"{evaluation.test.tier}/{evaluation.test.name}"},
        )
    return None


def _performance(measured: Measured) -> BenchPerformance:
    """Medians over the rounds; the speedup is the paired one, which the project reports everywhere."""
    autotuned = baseline_of(measured, AUTOTUNED)
    return BenchPerformance(
        latency_ms=measured.time_us / 1e3,
        reference_latency_ms=None if autotuned is None else median_us(autotuned) / 1e3,
        speedup_factor=ratio_over(measured, AUTOTUNED),
    )


@contextmanager
def _new_folder(folder: Path) -> Iterator[Path]:
    """A folder beside its place that is moved there once it is complete. Raises: UsageError."""
    if folder.exists() and (not folder.is_dir() or any(folder.iterdir())):
        raise UsageError(f"{folder} exists and is not an empty folder; choose another with --out")
    try:
        folder.parent.mkdir(parents=True, exist_ok=True)
        staging = Path(tempfile.mkdtemp(prefix=f".{folder.name}.", dir=folder.parent))
        try:
            yield staging
            staging.chmod(0o755)
            os.replace(staging, folder)
        except BaseException:
            shutil.rmtree(staging, ignore_errors=True)
            raise
    except OSError as exc:
        raise UsageError(f"{folder} cannot be written ({exc.strerror}); choose another folder with --out") from exc
