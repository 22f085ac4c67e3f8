"""Steps as evaluations of solutions: statuses, times, errors, environments."""

import math
from typing import NamedTuple

from cudal2_agent.contract.records.evaluation import (
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
from cudal2_agent.contract.records.task import GemmTask
from cudal2_agent.contract.records.trajectory import RunRecord, Step
from cudal2_agent.contract.reward.reward import beyond_roofline, confirmed
from cudal2_agent.contract.reward.speedup import baseline_of, median_us, ratio_over
from cudal2_agent.policies.exports.flashinfer.bench_records import (
    BenchCorrectness,
    BenchEnvironment,
    BenchEvaluation,
    BenchPerformance,
    BenchStatus,
)
from cudal2_agent.policies.exports.flashinfer.bench_solutions import AUTHOR


class Attempted(NamedTuple):
    run: RunRecord
    step: Step


def status_of(each: Attempted) -> BenchStatus | None:
    """The status that says the same; None for steps that no GPU ran, for times that are not to be believed, and for modules."""
    evaluation: Evaluation = each.step.evaluation
    if not isinstance(each.run.task, GemmTask):
        return None
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


def evaluation_of(each: Attempted, status: BenchStatus) -> BenchEvaluation:
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


def _environment(each: Attempted) -> BenchEnvironment:
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
