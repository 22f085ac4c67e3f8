"""What the sandbox needs of a task's kind: the task and the schedule at another size, and a predicted time."""

from collections.abc import Mapping

from cudal2_agent.contract.errors import UsageError
from cudal2_agent.contract.plan.chip import REFERENCE_CHIPS
from cudal2_agent.contract.records.candidate import AnyCandidate, Candidate
from cudal2_agent.contract.records.evaluation import Prediction
from cudal2_agent.contract.records.inspection import Inspection
from cudal2_agent.contract.records.module_task import ModuleTask, Task
from cudal2_agent.contract.records.task import GemmTask
from cudal2_agent.contract.reward.roofline import roofline_us
from cudal2_agent.policies.fusion.policy import rewrite as rewrite_fused
from cudal2_agent.policies.schedule.families.registry import rewrite
from cudal2_agent.policies.schedule.optimiser.pool_prior import PriorOf
from cudal2_agent.policies.schedule.prediction import predict
from cudal2_agent.sandbox.modules.tracing.tracer import Tracer


class Resizer:
    """Traces the module of a task at other dims, each once: the emulator asks for every candidate."""

    def __init__(self, tracer: Tracer) -> None:
        self._tracer = tracer
        self._known: dict[tuple[str, tuple[tuple[str, int], ...]], ModuleTask | UsageError] = {}

    def __call__(self, task: ModuleTask, dims: Mapping[str, int]) -> ModuleTask:
        """Raises: UsageError where the file does not suit the dims; MachineError, WorkerError."""
        key = (task.id, tuple(sorted(dims.items())))
        if key not in self._known:
            try:
                found = self._tracer.trace(task.problem, task.name, dims, task.arithmetic, task.training, task.arch, task.mode)
                self._known[key] = found.model_copy(update={"frozen": task.frozen})
            except UsageError as exc:
                self._known[key] = exc
        known = self._known[key]
        if isinstance(known, UsageError):
            raise known
        return known


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
