"""A session of the bench on this machine: the tasks without a row are measured, and each row is kept as it ends."""

from collections.abc import Iterator, Sequence
from contextlib import suppress
from dataclasses import dataclass
from functools import partial
from pathlib import Path

from cudal2_agent.agent.bench.bench_engine import BenchEngine
from cudal2_agent.agent.bench.proposals.arms import BenchArm, known_schedules
from cudal2_agent.agent.bench.proposals.one_task import TaskBench
from cudal2_agent.agent.bench.proposals.proposal_rows import Basis, BenchSize, ProposalRow, append_row, checked_out
from cudal2_agent.agent.wiring.sandbox import open_sandbox_of
from cudal2_agent.contract.events import Emit, Notice
from cudal2_agent.contract.plan.chip import Chip
from cudal2_agent.contract.protocols import Sandbox
from cudal2_agent.contract.records.candidate import Candidate
from cudal2_agent.contract.records.task import GemmTask
from cudal2_agent.contract.settings.settings import Settings
from cudal2_agent.policies.schedule.families.registry import written
from cudal2_agent.policies.schedule.policy import Precedents
from cudal2_agent.store.store import Store

AHEAD = 2  # tasks in preparation: one proposes, which uses one core, while the other builds, which uses them all
KNOWN = 12  # schedules of earlier runs that are measured with the proposals
PREDICTIONS = (
    "no GPU is here: figures are of predicted times. A schedule's time is predicted by the analytic prior itself, "
    "so that they say nothing of how good the prior is"
)


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


@dataclass(frozen=True)
class BenchSession:
    """`store`: holds the best known schedules, and keeps tuned baselines."""

    arms: Sequence[BenchArm]
    size: BenchSize
    settings: Settings
    store: Store
    emit: Emit
    commit: str = ""

    def rows(
        self, tasks: Sequence[GemmTask], before: Sequence[ProposalRow], out: Path, minutes: float | None = None
    ) -> list[ProposalRow]:
        """The rows of the tasks that have none `before`, each appended to a file. Tasks are of one arch.

        Raises: MachineError, WorkerError, StoreError; UsageError where the file cannot be written.
        """
        checked_out(out)
        if not tasks:
            return []
        with open_sandbox_of(tasks[0].arch, self.settings, self.emit, baselines=self.store) as sandbox:
            return self.measured(tasks, before, out, sandbox, minutes)

    def measured(
        self, tasks: Sequence[GemmTask], before: Sequence[ProposalRow], out: Path, sandbox: Sandbox, minutes: float | None
    ) -> list[ProposalRow]:
        """The same in an open sandbox."""
        basis: Basis = "measured" if sandbox.can_measure else "predicted"
        if basis == "predicted":
            self.emit(Notice(message=PREDICTIONS))
        left = [task for task in tasks if not any(self._answers(row, task, basis) for row in before)]
        if len(left) < len(tasks):
            self.emit(Notice(message=f"{len(tasks) - len(left)} of {len(tasks)} tasks have a row already"))
        known = known_schedules(self.store)
        bench = ProposalBench(self.arms, known, sandbox, self.size, self.settings.seed, self.emit, self.commit)
        found = []
        for row in bench.rows(left, minutes):
            append_row(out, row)
            found.append(row)
        return found

    def _answers(self, row: ProposalRow, task: GemmTask, basis: Basis) -> bool:
        return row.covers(task, [(arm.name, arm.note) for arm in self.arms], self.size, self.settings.seed, basis)
