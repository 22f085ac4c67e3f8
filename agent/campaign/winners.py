"""From a finished run to the row of its task: the best kernel with programmatic launch allowed, and the best without."""

from collections.abc import Iterable, Sequence
from datetime import UTC, datetime

from cudal2_agent.agent.observe.ranking import rank, trusted_first
from cudal2_agent.agent.run.result import RunResult
from cudal2_agent.contract.plan.chip import Chip
from cudal2_agent.contract.records.campaign import ShapeResult, Winner
from cudal2_agent.contract.records.candidate import Candidate
from cudal2_agent.contract.records.evaluation import AUTOTUNED, Measured, Timing
from cudal2_agent.contract.records.module_task import gemm
from cudal2_agent.contract.records.task import GemmTask
from cudal2_agent.contract.records.trajectory import Step
from cudal2_agent.contract.reward.roofline import roofline_us
from cudal2_agent.contract.reward.speedup import baseline_of, median_us, paired_ratio, paired_speedup

_DECIDING = ("race", "full")  # efforts whose times decide a winner
_ON_GPU = ("evaluate", "screen", "race")  # stages in which the GPU works


def shape_result(run: RunResult, commit: str = "") -> ShapeResult:
    """The row of a run that ended. Its winners are not proved yet."""
    task, chip = gemm(run.run.task, "a row of a campaign"), run.run.chip
    deciding = deciding_steps(run.steps, task, chip)
    best, best_without = best_launches(deciding)
    return ShapeResult(
        task=task,
        run_id=run.run.run_id,
        environment=environment_of(run.steps),
        best=best,
        best_without=best_without,
        baselines_us=baselines_beside(deciding, best),
        autotuned=algorithm_beside(deciding, best),
        floor_us=roofline_us(task, chip),
        candidates=len({step.candidate.id for step in run.steps}),
        gpu_seconds=sum(map(gpu_seconds_of, run.steps)),
        seconds=run.spent_s,
        reason=run.reason if best else f"no kernel was measured: {_why_none(run.steps)}",
        commit=commit,
        finished_at=datetime.now(UTC),
    )


def deciding_steps(steps: Sequence[Step], task: GemmTask, chip: Chip) -> list[Step]:
    """The latest step of each candidate, of those that a final measurement timed plausibly.

    Records without an effort are taken where no step has one that decides. A candidate whose latest evaluation failed is
    left out.
    """
    latest = list({step.candidate.id: step for step in steps}.values())
    trusted = [one.step for one in trusted_first(rank(step, task, chip) for step in latest)]
    raced = [step for step in trusted if decides(step)]
    return raced or [step for step in trusted if _effort(step) is None]


def best_launches(steps: Iterable[Step]) -> tuple[Winner | None, Winner | None]:
    """The launches with the highest paired ratio over cuBLASLt-AutoTuning: of all, and of those without programmatic launch."""
    launches = [launch for step in steps for launch in _launches(step)]
    plain = [launch for launch in launches if not launch[1]]
    return _winner(launches), _winner(plain)


def baselines_beside(steps: Sequence[Step], winner: Winner | None) -> dict[str, float]:
    """Median times of the baselines that were measured in the same rounds as the winner."""
    found = _measured_beside(steps, winner)
    return {timing.name: median_us(timing) for timing in found.baselines} if found else {}


def algorithm_beside(steps: Sequence[Step], winner: Winner | None) -> str | None:
    """The algorithm that AutoTuning ran in the same rounds as the winner, in words; None where it was not recorded."""
    found = _measured_beside(steps, winner)
    timing = baseline_of(found, AUTOTUNED) if found else None
    return timing.detail.partition(";")[0] or None if timing else None  # behind it stands how it was chosen


def _measured_beside(steps: Sequence[Step], winner: Winner | None) -> Measured | None:
    found = next((step.evaluation for step in steps if winner and step.index == winner.step_index), None)
    return found if isinstance(found, Measured) else None


def decides(step: Step) -> bool:
    """Whether the step's times decide a winner, and not only who enters the race."""
    return _effort(step) in _DECIDING


def ratios_of(step: Step) -> tuple[float | None, float | None]:
    """Paired ratios over AutoTuning: of the step's better launch, and of its plain one. None for what was not measured."""
    ratios = [(programmatic, paired_ratio(timing, baseline)) for _, programmatic, timing, baseline in _launches(step)]
    plain = [ratio for programmatic, ratio in ratios if not programmatic]
    return max((ratio for _, ratio in ratios), default=None), max(plain, default=None)


def gpu_seconds_of(step: Step) -> float:
    """Seconds in which the GPU worked for a step."""
    return sum(step.seconds.get(stage, 0.0) for stage in _ON_GPU)


def _launches(step: Step) -> list[tuple[Step, bool, Timing, Timing]]:
    """Each way in which a step's kernel was timed: the step, whether programmatic, its samples and those of the baseline."""
    measured = step.evaluation
    baseline = baseline_of(measured, AUTOTUNED) if isinstance(measured, Measured) else None
    if not isinstance(measured, Measured) or baseline is None:
        return []
    found = [(step, _is_programmatic(step), measured.timing, baseline)]
    return found + ([(step, False, measured.plain, baseline)] if measured.plain else [])


def _winner(launches: Sequence[tuple[Step, bool, Timing, Timing]]) -> Winner | None:
    if not launches:
        return None
    step, programmatic, timing, baseline = max(launches, key=lambda launch: paired_ratio(launch[2], launch[3]))
    return Winner(
        candidate_id=step.candidate.id,
        step_index=step.index,
        schedule=step.candidate.origin.schedule,
        programmatic=programmatic,
        time_us=median_us(timing),
        speedup=paired_speedup(timing, baseline),
        worst_error=max((test.worst for test in step.evaluation.tests), default=None),
    )


def _is_programmatic(step: Step) -> bool:
    candidate = step.candidate
    return isinstance(candidate, Candidate) and any(launch.programmatic for launch in candidate.plan.kernels)


def _effort(step: Step) -> str | None:
    return step.evaluation.effort if isinstance(step.evaluation, Measured) else None


def environment_of(steps: Sequence[Step]) -> str | None:
    return next((step.evaluation.environment.key for step in steps if isinstance(step.evaluation, Measured)), None)


def _why_none(steps: Sequence[Step]) -> str:
    if not steps:
        return "no candidate was tried"
    return steps[-1].evaluation.headline
