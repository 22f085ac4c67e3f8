"""The bench: one task after another in an open sandbox; the next task is proposed and built while the GPU measures this one."""

import time
from collections.abc import Iterator, Mapping, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import dataclass
from typing import NamedTuple

from agent.policy_bench.arms import BenchArm
from agent.policy_bench.one_task import TaskBench
from agent.policy_bench.proposal_rows import BenchSize, ProposalRow
from contract.candidate import Candidate, ScheduleValue
from contract.chip import Chip
from contract.errors import UsageError
from contract.events import Emit, Notice
from contract.protocols import Sandbox
from contract.task import GemmTask
from policies.schedule.families.registry import families
from policies.schedule.policy import Precedents

KNOWN = 12  # schedules of earlier runs that are measured with the proposals


class Ahead(NamedTuple):
    """A task that is prepared in the background."""

    bench: TaskBench
    prepared: Future[None]


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
        begin_s, longest_s = time.monotonic(), 0.0
        ahead: Ahead | None = None
        with ThreadPoolExecutor(1) as background:
            try:
                ahead = self._begin(background, tasks[0]) if tasks else None
                for number, task in enumerate(tasks):
                    assert ahead is not None
                    bench, task_begin_s = self._ready(ahead, task), time.monotonic()
                    if minutes is not None and task_begin_s - begin_s + longest_s > 60 * minutes:
                        self._say(f"{len(tasks) - number} tasks are left: the time is spent; the same command goes on")
                        return
                    ahead = self._begin(background, tasks[number + 1]) if number + 1 < len(tasks) else None
                    if bench is not None:
                        self._say(f"task {number + 1} of {len(tasks)}: {task.shape}")
                        row = bench.measure(self.commit)
                        for arm in row.arms:
                            if arm.error:
                                self._say(f"arm {arm.name} at {task.shape}: {arm.error}")
                        yield row
                    longest_s = max(longest_s, time.monotonic() - task_begin_s)
            finally:
                if ahead is not None:
                    ahead.bench.stop()

    def _begin(self, background: ThreadPoolExecutor, task: GemmTask) -> Ahead:
        bench = TaskBench(task, self.arms, self.size, self.seed, self.sandbox)
        return Ahead(bench, background.submit(bench.prepare, lambda: known_candidates(self.known, task, self.sandbox.chip)))

    def _ready(self, ahead: Ahead, task: GemmTask) -> TaskBench | None:
        try:
            ahead.prepared.result()
            return ahead.bench
        except UsageError as exc:
            self._say(f"{task.shape} is left out: {exc}")
            return None

    def _say(self, message: str) -> None:
        self.emit(Notice(message=message))


def known_candidates(known: Precedents, task: GemmTask, chip: Chip) -> list[Candidate]:
    """The kernels of schedules that are known to be good, of those that this version can write."""
    found = (written(one.schedule, task) for one in known(task, chip))
    return [one for one in found if one is not None][:KNOWN]


def written(values: Mapping[str, ScheduleValue], task: GemmTask) -> Candidate | None:
    """The kernel of a schedule; None where no family can write it for the task."""
    family = next((one for one in families(task.arch) if one.name == values.get("family")), None)
    try:
        return None if family is None else family.write(family.parse(dict(values)), task)
    except ValueError:
        return None
