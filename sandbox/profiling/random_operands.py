"""Random operands of one profiled run, on the GPU."""

from dataclasses import replace
from typing import Any

import cupy

from cudal2_agent.contract.records.task import GemmTask
from cudal2_agent.sandbox.cuda.contender import Operands
from cudal2_agent.sandbox.cuda.guard.buffers import GuardedOperands
from cudal2_agent.sandbox.verification.draws import Draws
from cudal2_agent.sandbox.verification.elements import POISON
from cudal2_agent.sandbox.verification.inputs import gaussian


class RandomOperands:
    """One set of a task's operands: Gaussian inputs from a seed, D poisoned, in the task's layout."""

    def __init__(self, task: GemmTask, seed: int) -> None:
        self._guarded = GuardedOperands(task)
        inputs = gaussian(Draws(cupy, seed), task)
        self._guarded.load(*inputs.stored(task.layout))

    def operands(self, workspace: Any | None) -> Operands:
        return replace(self._guarded.operands, workspace=workspace)

    def scrub(self) -> None:
        """Poison D again."""
        self._guarded.poison()

    def unwritten(self) -> int:
        """The number of outputs that still hold the poison."""
        return int(cupy.count_nonzero(self._guarded.operands.d.view(cupy.uint16) == POISON))
