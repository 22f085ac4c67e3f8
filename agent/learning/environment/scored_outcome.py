"""From an evaluation to its value, and whether the evaluation may be kept for later. Pure."""

from cudal2_agent.contract.plan.chip import Chip
from cudal2_agent.contract.records.candidate import AnyCandidate
from cudal2_agent.contract.records.evaluation import CompileFailed, Evaluation, Measured, Rejected, Unmeasured, Wrong
from cudal2_agent.contract.records.module_task import ModuleTask, Task
from cudal2_agent.contract.reward.reward import FLOOR, beyond_roofline, reward, without_compiled
from cudal2_agent.contract.reward.score import Basis, Scored, predicted_value
from cudal2_agent.contract.reward.speedup import yardstick_of


def scored(
    candidate: AnyCandidate,
    evaluation: Evaluation,
    task: Task,
    chip: Chip,
    *,
    cached: bool = False,
    seconds: float = 0.0,
    executed_s: float = 0.0,
) -> Scored:
    """The outcome of a candidate: its reward where it was measured, else the value of its predicted time."""
    value, basis = _valued(candidate, evaluation, task, chip)
    return Scored(
        candidate_id=candidate.id,
        evaluation=evaluation,
        value=value,
        basis=basis,
        cached=cached,
        seconds=round(seconds, 4),
        executed_s=round(executed_s, 4),
    )


def lasting(outcome: Scored) -> bool:
    """Whether another evaluation would say the same.

    A time limit and a crash depend on the machine's load too, and what has no value yet may get one: a baseline or a second
    witness was missing.
    """
    evaluation = outcome.evaluation
    return outcome.value is not None and isinstance(evaluation, Rejected | CompileFailed | Wrong | Unmeasured | Measured)


def fault_of(outcome: Scored, task: Task) -> str:
    """What is wrong with a candidate, or why its value is unknown; empty where neither is so."""
    if outcome.basis == "failed" and outcome.evaluation.passed:
        return "its time is implausible: it is far under the roofline"
    return outcome.evaluation.fault or why_unknown(outcome, task)


def why_unknown(outcome: Scored, task: Task) -> str:
    """Why an outcome has no value, and what to do about it; empty where it has one."""
    evaluation = outcome.evaluation
    if outcome.value is not None:
        return ""
    if isinstance(task, ModuleTask) and task.is_unsound:
        return f"the task is unsound, so that nothing is rewarded: {task.soundness.reason if task.soundness else ''}"
    if isinstance(evaluation, Unmeasured):
        return (
            f"a kernel was not executed: {evaluation.reason}" if evaluation.reason else "no model predicts the time of a kernel"
        )
    if isinstance(evaluation, Measured) and yardstick_of(evaluation) is None:
        if isinstance(task, ModuleTask):
            return "no baseline of PyTorch ran, and rewards are relative to the fastest; see the notes of the evaluation"
        return "the cuBLASLt baseline is missing, and rewards are relative to it; pip install nvmath-python"
    if isinstance(evaluation, Measured) and without_compiled(evaluation, task):
        return "no compiled baseline was measured, and eager PyTorch alone is no yardstick; see the notes of the evaluation"
    witness = evaluation.witness if isinstance(evaluation, Measured) else None
    return f"no second witness confirms a kernel that a model wrote: {witness.reason if witness else 'it was not asked'}"


def _valued(candidate: AnyCandidate, evaluation: Evaluation, task: Task, chip: Chip) -> tuple[float, Basis] | tuple[None, None]:
    if isinstance(task, ModuleTask) and task.is_unsound:
        return None, None
    if evaluation.failed or (isinstance(evaluation, Measured) and beyond_roofline(evaluation, task, chip)):
        return FLOOR, "failed"
    if isinstance(evaluation, Measured):
        gained = reward(evaluation, task, chip, candidate.origin)
        return (None, None) if gained is None else (gained, "measured")
    foreseen = predicted_value(evaluation, task, chip)
    return (None, None) if foreseen is None else (foreseen, "predicted")
