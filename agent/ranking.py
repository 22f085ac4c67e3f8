"""Which step leads a run, which are measured again at its end, and the steps in short as a policy sees them. Pure."""

from collections.abc import Sequence

from agent.summary import message_of
from contract.chip import Chip
from contract.evaluation import AUTOTUNED, Measured, Unmeasured
from contract.reward import beyond_roofline
from contract.speedup import median_us, speedup_over
from contract.task import GemmTask
from contract.trajectory import Attempt, Step


def leader(steps: Sequence[Step], task: GemmTask, chip: Chip) -> Step | None:
    """The best candidate's latest step; None where none passed.

    A measured time beats any prediction. Candidates that were measured again, in full, are compared among themselves by
    their paired speedup; others by their time. A candidate whose latest evaluation failed is out, whatever it was before.
    """
    latest = {step.candidate.id: step for step in steps}
    timed = [step for step in latest.values() if _trusted(step, task, chip)]
    if not timed:
        return min((s for s in latest.values() if isinstance(s.evaluation, Unmeasured)), key=_predicted_us, default=None)
    repeated = [step for step in timed if _count(steps, step.candidate.id) > 1]
    return max(repeated, key=_final_score) if repeated else min(timed, key=_time_us)


def finalists(steps: Sequence[Step], task: GemmTask, chip: Chip, count: int) -> list[Step]:
    """The fastest candidates of the search, fastest first."""
    return sorted((step for step in steps if _trusted(step, task, chip)), key=_time_us)[:count]


def attempt_of(step: Step) -> Attempt:
    """A step in short."""
    evaluation = step.evaluation
    time_us = median_us(evaluation.timing) if isinstance(evaluation, Measured) else None
    speedup = speedup_over(evaluation, AUTOTUNED) if isinstance(evaluation, Measured) else None
    return Attempt(
        candidate_id=step.candidate.id,
        policy=step.candidate.origin.policy,
        schedule=step.candidate.origin.schedule,
        status=evaluation.status,
        message=message_of(evaluation),
        time_us=time_us,
        predicted_us=evaluation.prediction.predicted_us if isinstance(evaluation, Unmeasured) else None,
        speedup=speedup.ratio if speedup else None,
        reward=step.reward,
    )


def best_prediction_us(steps: Sequence[Step]) -> float | None:
    """The least predicted time among steps that were not executed."""
    return min((_predicted_us(step) for step in steps if isinstance(step.evaluation, Unmeasured)), default=None)


def _trusted(step: Step, task: GemmTask, chip: Chip) -> bool:
    """Measured, and not so fast that it must be a trick."""
    return isinstance(step.evaluation, Measured) and not beyond_roofline(step.evaluation, task, chip)


def _count(steps: Sequence[Step], candidate_id: str) -> int:
    return sum(step.candidate.id == candidate_id for step in steps)


def _final_score(step: Step) -> tuple[float, float]:
    """Speedup over the autotuned baseline, then time; without that baseline time alone decides."""
    assert isinstance(step.evaluation, Measured)
    speedup = speedup_over(step.evaluation, AUTOTUNED)
    return speedup.ratio if speedup else 0.0, -_time_us(step)


def _time_us(step: Step) -> float:
    assert isinstance(step.evaluation, Measured)
    return median_us(step.evaluation.timing)


def _predicted_us(step: Step) -> float:
    assert isinstance(step.evaluation, Unmeasured)
    return step.evaluation.prediction.predicted_us
