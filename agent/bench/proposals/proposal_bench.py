"""The bench over tasks in an open sandbox: the next two are proposed and built while the GPU measures one."""

from collections.abc import Iterator, Sequence
from contextlib import suppress
from dataclasses import dataclass
from functools import partial

from cudal2_agent.agent.bench.bench_engine import BenchEngine
from cudal2_agent.agent.bench.proposals.arms import BenchArm
from cudal2_agent.agent.bench.proposals.one_task import TaskBench
from cudal2_agent.agent.bench.proposals.proposal_rows import BenchSize, ProposalRow
from cudal2_agent.contract.events import Emit
from cudal2_agent.contract.plan.chip import Chip
from cudal2_agent.contract.protocols.protocols import Sandbox
from cudal2_agent.contract.records.candidate import Candidate
from cudal2_agent.contract.records.task import GemmTask
from cudal2_agent.policies.schedule.families.registry import written
from cudal2_agent.policies.schedule.policy import Precedents

AHEAD = 2  # tasks in preparation: one proposes, which uses one core, while the other builds, which uses them all
KNOWN = 12  # schedules of earlier runs that are measured with the proposals


@dataclass(frozen=True)
class ProposalBench:
    """What is compared, and where. `known`: the schedules that led earlier runs of a task."""

    arms: Sequence[BenchArm]
    known: Precedents
    sandbox: Sandbox
    size: BenchSize
    seed: int
    emit: Emit
    commit: str = ""

    def rows(self, tasks: Sequence[GemmTask], minutes: float | None = None) -> Iterator[ProposalRow]:
        """A row for each task, as it ends. No task begins that would not end within `minutes`, by the longest one so far.

        A task whose operands do not fit is left out with a notice. Raises: MachineError, WorkerError, StoreError.
        """
        jobs = (self._job(task) for task in tasks)
        return BenchEngine(self.emit, AHEAD, minutes).rows(jobs, len(tasks))

    def _job(self, task: GemmTask) -> TaskBench:
        known = partial(known_candidates, self.known, task, self.sandbox.chip)
        return TaskBench(task, self.arms, self.size, self.seed, self.sandbox, known, self.emit, self.commit)


def known_candidates(known: Precedents, task: GemmTask, chip: Chip) -> list[Candidate]:
    """The kernels of schedules that are known to be good, of those that this version can write."""
    found: list[Candidate] = []
    for one in known(task, chip):
        with suppress(ValueError):
            found.append(written(one.schedule, task))
    return found[:KNOWN]
