"""A session of the bench on this machine: the tasks without a row are measured, and each row is kept as it ends."""

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from cudal2_agent.agent.bench.proposals.arms import BenchArm, known_schedules
from cudal2_agent.agent.bench.proposals.proposal_bench import ProposalBench
from cudal2_agent.agent.bench.proposals.proposal_rows import Basis, BenchSize, ProposalRow, append_row, checked_out
from cudal2_agent.agent.wiring.sandbox import open_sandbox_of
from cudal2_agent.contract.events import Emit, Notice
from cudal2_agent.contract.protocols.protocols import Sandbox
from cudal2_agent.contract.records.task import GemmTask
from cudal2_agent.contract.settings.settings import Settings
from cudal2_agent.store.store import Store

PREDICTIONS = (
    "no GPU is here: figures are of predicted times. A schedule's time is predicted by the analytic prior itself, "
    "so that they say nothing of how good the prior is"
)


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
