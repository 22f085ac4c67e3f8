"""Which task a worker gets next: by work, by what fits into the memory of its GPU, and large ones alone."""

import threading
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path

from cudal2_agent.contract.plan.chip import REFERENCE_CHIPS
from cudal2_agent.contract.records.module_task import ModuleTask
from cudal2_agent.contract.records.named_buffer import Role
from cudal2_agent.contract.reward.roofline import roofline_us
from cudal2_agent.sandbox.modules.judge_memory import judge_bytes

PROCESS_BYTES = 1_200_000_000  # of a worker's context, libraries and code
SETS, TIMED_BYTES = 4, 14_000_000_000  # of a sample's values: at least so many sets, and otherwise no more than 4 ms read
JUDGE_BYTES = 20_000_000_000  # beyond which references are made piece by piece
WORK_BYTES_S, WORK_FLOPS_S = 2e9, 1e12  # of a task's operands and operations in a second of measuring, to order by


@dataclass(order=True)
class Item:
    """A task in the queue. `need_bytes`: device memory that its measurement may take; `alone`: with no other beside it."""

    work_s: float
    name: str
    file: Path = field(compare=False)
    need_bytes: int = field(compare=False)
    alone: bool = field(default=False, compare=False)


def item_of(file: Path, task: ModuleTask) -> Item:
    work_s = task.operand_bytes / WORK_BYTES_S + task.flops / WORK_FLOPS_S
    return Item(work_s, task.name, file, need_bytes(task))


def need_bytes(task: ModuleTask) -> int:
    """About the device memory of verifying and timing: sets of values with references, guarded copies, and float64."""
    written = sum(buffer.elements for buffer in task.buffers if buffer.role is not Role.INPUT and buffer.role.written)
    one = task.operand_bytes + 6 * written
    sets = max(SETS, min(128, TIMED_BYTES // max(one, 1), int(4000 / roofline_us(task, REFERENCE_CHIPS[task.arch]))))
    values = max(SETS * one, min(sets * one, TIMED_BYTES))
    return values + 3 * task.operand_bytes + min(judge_bytes(task, task.graph), JUDGE_BYTES)


class Board:
    """The tasks that wait and that run. Half of the GPUs take those with most work first, the others those with least.

    So both ends of a list that takes longer than the time allowed are measured, and large and small tasks rarely meet on a
    GPU. Any number of threads.
    """

    def __init__(self, items: Sequence[Item], gpus: int, capacity_bytes: int) -> None:
        self._waiting = sorted(items, reverse=True)
        self._gpus, self._capacity = gpus, capacity_bytes
        self._running: list[list[Item]] = [[] for _ in range(gpus)]
        self._changed = threading.Condition()
        self._closed = False

    @property
    def waiting(self) -> list[Item]:
        """In order of work, most first."""
        return list(self._waiting)

    def take(self, gpu: int) -> Item | None:
        """The next task for a worker of this GPU, when it fits; None when nothing is left, or the board is closed."""
        with self._changed:
            while not self._closed and (self._waiting or any(self._running)):
                found = self._fitting(gpu)
                if found is not None:
                    self._waiting.remove(found)
                    self._running[gpu].append(found)
                    return found
                self._changed.wait(1.0)
            return None

    def done(self, gpu: int, item: Item, *, again_alone: bool = False) -> None:
        """A task has ended. `again_alone`: it found too little memory beside others, and waits to be alone."""
        with self._changed:
            self._running[gpu].remove(item)
            if again_alone:
                item.alone = True
                self._waiting.insert(0, item)
            self._changed.notify_all()

    def close(self) -> None:
        """Nobody gets another task."""
        with self._changed:
            self._closed = True
            self._changed.notify_all()

    def _fitting(self, gpu: int) -> Item | None:
        """The first in order; where another large task keeps it waiting, one that fits beside that."""
        running = self._running[gpu]
        if not self._waiting or any(each.alone for each in running):
            return None
        order = self._waiting if gpu < (self._gpus + 1) // 2 else self._waiting[::-1]
        free = self._capacity - sum(map(self._need, running))
        first = order[0]
        if self._need(first) <= free:
            return first
        least = max(self._capacity - self._need(first), self._capacity // 2)
        if not any(self._need(each) > least for each in running):
            return None  # small ones make way for it, so that none may come in their place
        return next((each for each in order[1:] if self._need(each) <= free), None)

    def _need(self, item: Item) -> int:
        return self._capacity if item.alone else min(item.need_bytes, self._capacity)
