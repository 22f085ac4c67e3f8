"""What the sandbox needs of a task's kind: the schedule at another size, a predicted time, and a module at other sizes."""

from collections.abc import Mapping

from cudal2_agent.contract.errors import PlanError, UsageError
from cudal2_agent.contract.plan.chip import LIMITS, REFERENCE_CHIPS
from cudal2_agent.contract.plan.resolve import resolve
from cudal2_agent.contract.records.candidate import AnyCandidate, Candidate
from cudal2_agent.contract.records.evaluation import Prediction
from cudal2_agent.contract.records.inspection import Inspection
from cudal2_agent.contract.records.module_task import ModuleTask, Task
from cudal2_agent.contract.records.task import GemmTask
from cudal2_agent.contract.reward.plan_traffic import traffic_us
from cudal2_agent.contract.reward.roofline import roofline_us
from cudal2_agent.policies.fusion.policy import rewrite as rewrite_fused
from cudal2_agent.policies.schedule.families.registry import rewrite
from cudal2_agent.policies.schedule.optimiser.pool_prior import PriorOf
from cudal2_agent.policies.schedule.prediction import predict
from cudal2_agent.sandbox.emulator.large.module_size import Resize
from cudal2_agent.sandbox.modules.tracing.tracer import Tracer


def rewritten(candidate: Candidate, task: Task) -> Candidate | None:
    """The candidate's schedule written for another task of the same kind."""
    return rewrite(candidate, task) if isinstance(task, GemmTask) else rewrite_fused(candidate, task)


def predicted(candidate: AnyCandidate, task: Task, inspection: Inspection, prior_of: PriorOf) -> Prediction:
    """Of a module: what its plan moves, which ranks plans by what they fuse and not by how well they do it."""
    if isinstance(task, GemmTask):
        return predict(candidate, task, inspection, prior_of)
    chip = REFERENCE_CHIPS[task.arch]
    floor_us = roofline_us(task, chip)
    try:
        if isinstance(candidate, Candidate):
            plan = resolve(candidate.plan, task, LIMITS[task.arch], chip.sms)
            return Prediction(
                predicted_us=max(traffic_us(plan, task, chip), floor_us),
                model=f"bytes of each step on {chip.name}",
                floor_us=floor_us,
            )
    except PlanError:
        pass  # the candidate is not built either
    return Prediction(predicted_us=floor_us, model=f"roofline on {chip.name}", floor_us=floor_us)


def resized_by(tracer: Tracer) -> Resize:
    """Traces a module at other sizes, each once."""
    known: dict[tuple[str, tuple[tuple[str, int], ...]], ModuleTask | UsageError] = {}

    def resized(task: ModuleTask, dims: Mapping[str, int]) -> ModuleTask:
        key = task.id, tuple(dims.items())
        if key not in known:
            try:
                known[key] = tracer.trace(task.problem, task.name, dims, task.arithmetic, task.training, task.arch, task.mode)
            except UsageError as exc:
                known[key] = exc
        found = known[key]
        if isinstance(found, UsageError):
            raise found
        return found

    return resized
