"""Values of a module's profiled run, on the GPU."""

from typing import Any

from cudal2_agent.contract.records.module_task import ModuleTask
from cudal2_agent.contract.records.named_buffer import Role
from cudal2_agent.sandbox.cuda.contender import NamedOperands
from cudal2_agent.sandbox.cuda.device import Device
from cudal2_agent.sandbox.cuda.guard.buffers import Guarded
from cudal2_agent.sandbox.cuda.modules.guarded_values import GuardedValues, operands
from cudal2_agent.sandbox.cuda.modules.tensors import memory_told, use_stream
from cudal2_agent.sandbox.modules.cases import NORMAL, draw
from cudal2_agent.sandbox.modules.executor import differing, filled
from cudal2_agent.sandbox.verification.elements import POISON


class RandomValues:
    """One set of a module's buffers: normal numbers from a seed, outputs poisoned. Raises: MemoryError."""

    def __init__(self, task: ModuleTask, device: Device, seed: int) -> None:
        self._task = task
        with memory_told():
            self._guarded = GuardedValues(task.buffers, lambda _, size_bytes: Guarded(size_bytes))
            self._guarded.load(draw(task, NORMAL, seed, use_stream(device)))
            self._guarded.poison(POISON)

    def operands(self, workspace: Any | None) -> NamedOperands:
        return operands(self._guarded, None, workspace)

    def scrub(self) -> None:
        """Poison the outputs again."""
        self._guarded.poison(POISON)

    def unwritten(self) -> int:
        """The number of outputs that still hold the poison."""
        left = 0
        for buffer in self._task.buffers:
            if buffer.role is Role.OUTPUT:
                stored = self._guarded.outputs()[buffer.name]
                left += buffer.elements - differing(stored, filled(buffer.shape, buffer.element, POISON, stored.device))
        return left
