"""The bench: one task after another in an open sandbox; the next two are proposed and built while the GPU measures one."""

import time
from collections import deque
from collections.abc import Iterator, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import suppress
from dataclasses import dataclass
from functools import partial
from typing import NamedTuple

from cudal2_agent.agent.bench.proposals.arms import BenchArm
from cudal2_agent.agent.bench.proposals.one_task import TaskBench
from cudal2_agent.agent.bench.proposals.proposal_rows import BenchSize, ProposalRow
from cudal2_agent.contract.errors import UsageError
from cudal2_agent.contract.events import Emit, Notice
from cudal2_agent.contract.plan.chip import Chip
from cudal2_agent.contract.protocols.protocols import Sandbox
from cudal2_agent.contract.records.candidate import Candidate
from cudal2_agent.contract.records.task import GemmTask
from cudal2_agent.policies.schedule.families.registry import written
from cudal2_agent.policies.schedule.policy import Precedents

AHEAD = 2  # tasks in preparation: one proposes, which uses one core, while the other builds, which uses them all
KNOWN = 12  # schedules of earlier runs that are measured with the proposals


class Ahead(NamedTuple):
    """A task that is prepared in the background."""

    task: GemmTask
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
        waiting, ahead = deque(tasks), deque[Ahead]()
        with ThreadPoolExecutor(AHEAD) as background:
            try:
                for number, task in enumerate(tasks):
                    self._look_ahead(background, waiting, ahead)
                    bench, task_begin_s = self._ready(ahead[0]), time.monotonic()
                    ahead.popleft()
                    if minutes is not None and task_begin_s - begin_s + longest_s > 60 * minutes:
                        self._say(f"{len(tasks) - number} tasks are left: the time is spent; the same command goes on")
                        return
                    self._look_ahead(background, waiting, ahead)
                    if bench is not None:
                        self._say(f"task {number + 1} of {len(tasks)}: {task.shape}")
                        row = bench.measure(self.commit)
                        for arm in row.arms:
                            if arm.error:
                                self._say(f"arm {arm.name} at {task.shape}: {arm.error}")
                        yield row
                    longest_s = max(longest_s, time.monotonic() - task_begin_s)
            finally:
                for one in ahead:
                    one.bench.stop()

    def _look_ahead(self, background: ThreadPoolExecutor, waiting: deque[GemmTask], ahead: deque[Ahead]) -> None:
        """Begin to prepare waiting tasks, so many that AHEAD are in preparation."""
        while waiting and len(ahead) < AHEAD:
            task = waiting.popleft()
            bench = TaskBench(task, self.arms, self.size, self.seed, self.sandbox)
            known = partial(known_candidates, self.known, task, self.sandbox.chip)
            ahead.append(Ahead(task, bench, background.submit(bench.prepare, known)))

    def _ready(self, ahead: Ahead) -> TaskBench | None:
        try:
            ahead.prepared.result()
            return ahead.bench
        except UsageError as exc:
            self._say(f"{ahead.task.shape} is left out: {exc}")
            return None

    def _say(self, message: str) -> None:
        self.emit(Notice(message=message))


def known_candidates(known: Precedents, task: GemmTask, chip: Chip) -> list[Candidate]:
    """The kernels of schedules that are known to be good, of those that this version can write."""
    found: list[Candidate] = []
    for one in known(task, chip):
        with suppress(ValueError):
            found.append(written(one.schedule, task))
    return found[:KNOWN]
