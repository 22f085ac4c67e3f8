"""A candidate that passed check, compile and inspection."""

from cudal2_agent.contract.base import Record
from cudal2_agent.contract.plan.chip import LIMITS
from cudal2_agent.contract.plan.plan import ResolvedPlan
from cudal2_agent.contract.plan.resolve import resolve
from cudal2_agent.contract.records.candidate import AnyCandidate, Candidate
from cudal2_agent.contract.records.inspection import Inspection
from cudal2_agent.contract.records.module_task import Task


class Built(Record):
    """A candidate that is ready to run.

    `artifact_path`: the cubin of a `Candidate` or the shared library of a `HostCandidate`, in the compile cache.
    `cached`: whether the cache already held it. `seconds`: wall-clock time of check, compile and inspection together.
    `plan`: the launch plan, resolved for `task` on the chip of the build. Both are None in records of older versions, and
    `plan` also for a host candidate, which launches its kernels itself. `judged`: whether its machine code was inspected, and
    not its PTX alone.
    """

    candidate: AnyCandidate
    inspection: Inspection
    artifact_path: str
    cached: bool
    seconds: float
    task: Task | None = None
    plan: ResolvedPlan | None = None
    judged: bool = True

    def plan_for(self, task: Task, sms: int) -> ResolvedPlan | None:
        """The plan for a task on a chip with `sms` SMs; None for a host candidate.

        It is resolved again only for another task or chip than that of the build, and for a record of an older version.
        Raises: PlanError.
        """
        if not isinstance(self.candidate, Candidate):
            return None
        if self.plan is not None and self.task == task and self.plan.sms == sms:
            return self.plan
        return resolve(self.candidate.plan, task, LIMITS[task.arch], sms)
