"""The module proof's `ModuleExecutor` over the emulated machine: every run under another interleaving, with all detectors on.

Covered: what the proof needs of a backend, and the core's findings. Bounds are exact, so there are no canaries. Library calls
run in float64 between the launches.
Not covered: what a library call reads before anything has written it; it is a poison, which shows in the result only.
"""

from collections import Counter
from collections.abc import Sequence
from dataclasses import replace

import numpy as np
import torch

from cudal2_agent.contract.plan.library_call import LibraryCall
from cudal2_agent.contract.records.evaluation import TestResult
from cudal2_agent.contract.records.named_buffer import Buffer, Role
from cudal2_agent.sandbox.emulator.executor import POISON_BYTE, Interleavings, Restorer
from cudal2_agent.sandbox.emulator.judgement import run_and_judge
from cudal2_agent.sandbox.emulator.kernel import WORKSPACE, Arrays, BoundKernel, EmulatedKernel
from cudal2_agent.sandbox.modules.executor import STORED, Run, Values, filled
from cudal2_agent.sandbox.modules.library_calls import run_wide
from cudal2_agent.sandbox.verification.elements import Poisons
from cudal2_agent.sandbox.verification.executor import SLOTS, Fill, Violation

CPU = torch.device("cpu")


class EmulatedModule:
    """Runs one candidate of a module. One set of scratch serves all slots, as it does back to back on a stream."""

    device = CPU

    def __init__(
        self,
        kernel: EmulatedKernel,
        interleavings: Interleavings,
        ctas: Sequence[Sequence[int]] = (),
        *,
        slots: int = SLOTS,
        races: bool = True,
    ) -> None:
        """`ctas`: by launch, those that are run; all where empty. `races`: whether the order of accesses is checked."""
        self._kernel, self._interleavings, self._ctas, self._races = kernel, interleavings, ctas, races
        self._scratch = {each.name: _bytes(each.bytes) for each in kernel.scratch}
        self._scratch[WORKSPACE] = _bytes(kernel.plan.workspace_bytes)
        self._slots = [self._bound(interleavings.seed + slot) for slot in range(slots)]
        self._changed = [each.name for each in kernel.outputs]
        self._benign: Counter[str] = Counter()
        self._poisons = Poisons(interleavings.seed)

    def _bound(self, seed: int) -> BoundKernel:
        arrays = {each.name: _bytes(each.bytes) for each in self._kernel.task.buffers} | self._scratch
        return self._kernel.bind(arrays, seed, self._call)

    def run(self, values: Values, *, slot: int = 0, fill: Fill = Fill.POISON, fresh_scratch: bool = True) -> Run:
        bound = self._slots[slot % len(self._slots)]
        for buffer in self._kernel.task.buffers:
            if buffer.role is not Role.OUTPUT:
                tensor(bound.arrays, buffer).copy_(values[buffer.name])
        conditions = replace(self._interleavings.next(), races=self._races)
        if fresh_scratch:
            self._renew_scratch(conditions.poison)
        poison = self._poisons.next() if fill is Fill.POISON else None
        for buffer in self._kernel.outputs:
            if buffer.role is Role.OUTPUT and fill is not Fill.STALE:
                tensor(bound.arrays, buffer).copy_(filled(buffer.shape, buffer.element, poison or 0, CPU))
        judged = run_and_judge(bound, conditions, Restorer(bound.arrays, (*self._changed, *self._scratch)), ctas=self._ctas)
        self._benign.update(judged.benign)
        violations = (judged.fault,) if judged.fault is not None else self._unrestored()
        outputs = {buffer.name: tensor(bound.arrays, buffer) for buffer in self._kernel.outputs}
        return Run(outputs, violations, poison, self._covered(bound) if self._ctas else None)

    def run_dependent(self, values: Values, decoy: Values) -> Run:  # noqa: ARG002 (every run has late predecessors)
        return self.run(values)

    def summary(self) -> TestResult:
        """The interleavings of the runs, and the suspects that were found harmless."""
        return self._interleavings.summary(self._benign)

    def _call(self, call: LibraryCall, arrays: Arrays) -> None:
        names = {each.tensor for each in (*call.inputs, call.out)}
        run_wide(call, {name: tensor(arrays, self._kernel.buffers[name]) for name in names})

    def _renew_scratch(self, poison: int) -> None:
        for array in self._scratch.values():
            array.fill(poison)
        if self._kernel.zero == "restored":
            self._scratch[WORKSPACE].fill(POISON_BYTE)
            self._scratch[WORKSPACE][: self._kernel.plan.zero_bytes] = 0

    def _unrestored(self) -> tuple[Violation, ...]:
        if self._kernel.zero != "restored" or self._ctas:  # the CTAs left out may restore it
            return ()
        left = np.count_nonzero(self._scratch[WORKSPACE][: self._kernel.plan.zero_bytes])
        return (Violation("workspace", f"{left} bytes of the workspace were not restored to zero"),) if left else ()

    def _covered(self, bound: BoundKernel) -> dict[str, torch.Tensor]:
        """What the CTAs of the last run wrote of each output."""
        return {each.name: _written(bound, each) for each in self._kernel.outputs}


def _written(bound: BoundKernel, buffer: Buffer) -> torch.Tensor:
    found = torch.zeros(buffer.elements, dtype=torch.bool)
    for number in range(1, len(bound.kernel.plan.launches) + 1):
        for start, end in bound.machine.memory.ranges(buffer.name, number):
            found[start // buffer.element.bytes : -(-end // buffer.element.bytes)] = True
    return found.reshape(buffer.shape)


def tensor(arrays: Arrays, buffer: Buffer) -> torch.Tensor:
    """A buffer's array as its elements, in place."""
    return torch.from_numpy(arrays[buffer.name]).view(STORED[buffer.element]).reshape(buffer.shape)


def _bytes(count: int) -> np.ndarray:
    return np.zeros(count, dtype=np.uint8)
