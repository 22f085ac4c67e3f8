"""From an evaluation to its value, and whether the evaluation may be kept for later. Pure."""

from contract.candidate import AnyCandidate
from contract.chip import Chip
from contract.evaluation import CompileFailed, Evaluation, Measured, Rejected, Unmeasured, Wrong
from contract.reward import FLOOR, beyond_roofline, reward
from contract.score import Basis, Scored, predicted_value
from contract.task import GemmTask


def scored(
    candidate: AnyCandidate, evaluation: Evaluation, task: GemmTask, chip: Chip, *, cached: bool = False, seconds: float = 0.0
) -> Scored:
    """The outcome of a candidate: its reward where it was measured, else the value of its predicted time."""
    value, basis = _valued(candidate, evaluation, task, chip)
    return Scored(
        candidate_id=candidate.id, evaluation=evaluation, value=value, basis=basis, cached=cached, seconds=round(seconds, 4)
    )


def lasting(outcome: Scored) -> bool:
    """Whether another evaluation would say the same.

    A time limit and a crash depend on the machine's load too, and what has no value yet may get one: a baseline or a second
    witness was missing.
    """
    evaluation = outcome.evaluation
    return outcome.value is not None and isinstance(evaluation, Rejected | CompileFailed | Wrong | Unmeasured | Measured)


def _valued(
    candidate: AnyCandidate, evaluation: Evaluation, task: GemmTask, chip: Chip
) -> tuple[float, Basis] | tuple[None, None]:
    if evaluation.failed or (isinstance(evaluation, Measured) and beyond_roofline(evaluation, task, chip)):
        return FLOOR, "failed"
    if isinstance(evaluation, Measured):
        gained = reward(evaluation, task, chip, candidate.origin)
        return (None, None) if gained is None else (gained, "measured")
    foreseen = predicted_value(evaluation, task, chip)
    return (None, None) if foreseen is None else (foreseen, "predicted")
