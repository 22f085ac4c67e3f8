"""What the sandbox needs of a task's kind: the schedule at another size, and a predicted time."""

from cudal2_agent.contract.plan.chip import REFERENCE_CHIPS
from cudal2_agent.contract.records.candidate import AnyCandidate, Candidate
from cudal2_agent.contract.records.evaluation import Prediction
from cudal2_agent.contract.records.inspection import Inspection
from cudal2_agent.contract.records.module_task import Task
from cudal2_agent.contract.records.task import GemmTask
from cudal2_agent.contract.reward.roofline import roofline_us
from cudal2_agent.policies.fusion.policy import rewrite as rewrite_fused
from cudal2_agent.policies.schedule.families.registry import rewrite
from cudal2_agent.policies.schedule.optimiser.pool_prior import PriorOf
from cudal2_agent.policies.schedule.prediction import predict


def rewritten(candidate: Candidate, task: Task) -> Candidate | None:
    """The candidate's schedule written for another task of the same kind."""
    return rewrite(candidate, task) if isinstance(task, GemmTask) else rewrite_fused(candidate, task)


def predicted(candidate: AnyCandidate, task: Task, inspection: Inspection, prior_of: PriorOf) -> Prediction:
    """No schedule is behind the kernels of a module: their floor takes the place of a prediction."""
    if isinstance(task, GemmTask):
        return predict(candidate, task, inspection, prior_of)
    chip = REFERENCE_CHIPS[task.arch]
    floor_us = roofline_us(task, chip)
    return Prediction(predicted_us=floor_us, model=f"roofline on {chip.name}", floor_us=floor_us)
