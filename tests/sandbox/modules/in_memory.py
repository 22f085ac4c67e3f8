"""An executor whose kernel is a Python function over named tensors, which may misbehave as a kernel may."""

from collections.abc import Callable

import torch

from cudal2_agent.contract.records.module_task import ModuleTask
from cudal2_agent.contract.records.named_buffer import Role
from cudal2_agent.sandbox.modules.executor import STORED, Run, Values, filled
from cudal2_agent.sandbox.verification.elements import Poisons
from cudal2_agent.sandbox.verification.executor import SLOTS, Fill, Violation

# Reads the values, writes the outputs and states, and may use the scratch.
Kernel = Callable[[dict[str, torch.Tensor], dict[str, torch.Tensor], torch.Tensor], None]


class InMemory:
    """One scratch tensor serves all slots, as it does back to back on a stream."""

    device = torch.device("cpu")

    def __init__(self, task: ModuleTask, kernel: Kernel) -> None:
        self._task, self._kernel, self._poisons = task, kernel, Poisons(1)
        self._slots = [
            {b.name: torch.zeros(b.shape, dtype=STORED[b.element]) for b in task.buffers if b.role.written}
            for _ in range(SLOTS)
        ]
        self._scratch = torch.zeros(1 << 16)

    def run(self, values: Values, *, slot: int = 0, fill: Fill = Fill.POISON, fresh_scratch: bool = True) -> Run:
        outputs, poison = self._slots[slot], self._poisons.next() if fill is Fill.POISON else None
        for buffer in self._task.buffers:
            if buffer.role is Role.STATE:
                outputs[buffer.name].copy_(values[buffer.name])
            elif buffer.role is Role.OUTPUT and fill is not Fill.STALE:
                shape = tuple(outputs[buffer.name].shape)
                outputs[buffer.name].copy_(filled(shape, buffer.element, poison, self.device) if poison else torch.zeros(shape))
        if fresh_scratch:
            self._scratch.fill_(torch.nan)
        given = {name: value.clone() for name, value in values.items()}
        self._kernel(given, outputs, self._scratch)
        read = [b.name for b in self._task.buffers if b.role in (Role.INPUT, Role.PARAMETER)]
        changed = [name for name in read if not torch.equal(given[name].nan_to_num(), values[name].nan_to_num())]
        violations = tuple(Violation("input", f"the kernel changed {name}") for name in changed)
        return Run(outputs, violations, poison)

    def run_dependent(self, values: Values, decoy: Values) -> Run:  # noqa: ARG002 (a function waits for its arguments)
        return self.run(values)
