"""The tiers' `Executor` over the emulated machine: every run under another interleaving, with all detectors on.

Covered: what the tiers need of a backend, and the core's findings. Bounds are exact, so there are no canaries.
"""

import random
import time
from collections import Counter
from collections.abc import Iterable
from dataclasses import replace
from typing import Any

import numpy as np

from cudal2_agent.contract.records.evaluation import TestResult
from cudal2_agent.contract.records.module_task import Task
from cudal2_agent.contract.records.task import GemmTask
from cudal2_agent.sandbox.emulator import addressing
from cudal2_agent.sandbox.emulator.judgement import run_and_judge
from cudal2_agent.sandbox.emulator.kernel import WORKSPACE, Arrays, EmulatedKernel
from cudal2_agent.sandbox.emulator.machine import Conditions, Interleaving
from cudal2_agent.sandbox.verification.elements import Array, Poisons
from cudal2_agent.sandbox.verification.executor import SLOTS, Fill, Run, Violation
from cudal2_agent.sandbox.verification.inputs import Inputs

POISON_BYTE = 0xFF
_POISONS = (POISON_BYTE, 0xFE, 0xFD, 0x7F, 0x7E)  # of unwritten memory and registers: NaN, or conspicuously large
_FIXED = (Interleaving.LATEST, Interleaving.EAGER)
MIN_OPERATIONS = 1 << 28  # of warps: the minimum that a run may take
OPERATIONS_PER_PRODUCT = 2  # beyond that: 64 instructions for each multiply-add of a lane


class Interleavings:
    """The conditions of one run after another: the latest and the eager interleaving, then random ones from a seed.

    A proof begins with a block of addresses (`addressing.py`).

    `deadline`: of all runs together, on the monotonic clock.
    """

    def __init__(self, task: Task, seed: int, deadline: float) -> None:
        self.seed, self._deadline = seed, deadline
        self._most = MIN_OPERATIONS + OPERATIONS_PER_PRODUCT * (task.flops // 2)
        self.used: Counter[str] = Counter()
        self._last: Conditions | None = None

    def as_before(self) -> "Interleavings":
        """Conditions that are all those of the last run, without race detection: what a result shows is the same each time."""
        return _AsBefore(self)

    def aside(self) -> Conditions:
        """Conditions of a run that is not part of the proof."""
        return Conditions(Interleaving.EAGER, seed=self.seed, most_instructions=self._most, deadline_s=self._left_s)

    def next(self) -> Conditions:
        index = self.used.total()
        interleaving = _FIXED[index] if index < len(_FIXED) else Interleaving.RANDOM
        self.used[interleaving.name.lower()] += 1
        seed = self.seed % 2**57 * addressing.BLOCK + index
        poison = POISON_BYTE if index < len(_FIXED) else random.Random(seed).choice(_POISONS)
        self._last = Conditions(interleaving, seed=seed, poison=poison, most_instructions=self._most, deadline_s=self._left_s)
        return self._last

    def summary(self, benign: Counter[str]) -> TestResult:
        """A test that names the interleavings used. `benign`: suspects that were found harmless, by the runs that had them."""
        message = (
            f"{self.used.total()} runs ({', '.join(f'{count} {name}' for name, count in self.used.items())}) without a fault"
        )
        if benign:
            found = ", ".join(f"{kind} in {count} runs" for kind, count in sorted(benign.items()))
            message += f"; harmless, because what was read reached no output: {found}"
        return TestResult(tier="emulator", name="schedules", passed=True, message=message, seed=self.seed)

    @property
    def _left_s(self) -> float:
        return max(self._deadline - time.monotonic(), 1e-3)


class _AsBefore(Interleavings):
    def __init__(self, before: Interleavings) -> None:
        self.__dict__.update(before.__dict__)
        self.used = Counter()

    def next(self) -> Conditions:
        return replace(self._last or self.aside(), races=False, deadline_s=self._left_s)


class EmulatorExecutor:
    """Runs one kernel on operands in host memory. One workspace serves all slots, as it does back to back on a stream."""

    xp: Any = np

    def __init__(self, kernel: EmulatedKernel, interleavings: Interleavings) -> None:
        self._kernel, self._task, self._interleavings = kernel, kernel.product, interleavings
        self._workspace = np.full(kernel.plan.workspace_bytes, POISON_BYTE, dtype=np.uint8)
        arrays = [allocate(self._task, self._workspace) for _ in range(SLOTS)]
        self._slots = [kernel.bind(each, interleavings.seed + slot) for slot, each in enumerate(arrays)]
        self._benign: Counter[str] = Counter()
        self._poisons = Poisons(interleavings.seed)
        self._renew_workspace()

    def run(self, inputs: Inputs, *, slot: int = 0, fill: Fill = Fill.POISON, fresh_workspace: bool = True) -> Run:
        return self._run(inputs, slot, fill, fresh_workspace=fresh_workspace)

    def run_dependent(self, inputs: Inputs, decoy: Inputs) -> Run:  # noqa: ARG002 (every run has late predecessors)
        return self._run(inputs, 0, Fill.POISON, fresh_workspace=True)

    def library(self, inputs: Inputs) -> Array | None:  # noqa: ARG002 (there is no cuBLAS without a GPU)
        return None

    def again(self) -> "EmulatorExecutor":
        """An executor of the same kernel in memory of its own, under the conditions of the last run."""
        return EmulatorExecutor(self._kernel, self._interleavings.as_before())

    def summary(self) -> TestResult:
        """The interleavings of the runs, and the suspects that were found harmless."""
        return self._interleavings.summary(self._benign)

    def _run(self, inputs: Inputs, slot: int, fill: Fill, *, fresh_workspace: bool) -> Run:
        bound = self._slots[slot]
        load(bound.arrays, inputs, self._task)
        if fresh_workspace:
            self._renew_workspace()
        poison = self._poisons.next() if fill is Fill.POISON else None
        if fill is not Fill.STALE:
            bound.arrays["D"].fill(poison or 0)
        judged = run_and_judge(bound, self._interleavings.next(), Restorer(bound.arrays, ("D", WORKSPACE)))
        self._benign.update(judged.benign)
        violations = (judged.fault,) if judged.fault is not None else self._unrestored()
        return Run(bound.arrays["D"], violations, poison)

    def _renew_workspace(self) -> None:
        self._workspace.fill(POISON_BYTE)
        if self._kernel.zero == "restored":
            self._workspace[: self._kernel.plan.zero_bytes] = 0

    def _unrestored(self) -> tuple[Violation, ...]:
        left = np.count_nonzero(self._workspace[: self._kernel.plan.zero_bytes]) if self._kernel.zero == "restored" else 0
        return (Violation("workspace", f"{left} bytes of the workspace were not restored to zero"),) if left else ()


class Restorer:
    """Restores what some arrays held when it was made."""

    def __init__(self, arrays: Arrays, names: Iterable[str]) -> None:
        self._arrays = arrays
        self._held = {name: arrays[name].copy() for name in names}

    def __call__(self) -> None:
        for name, held in self._held.items():
            self._arrays[name][...] = held


def allocate(task: GemmTask, workspace: np.ndarray) -> dict[str, np.ndarray]:
    """A product's operands around a workspace, as bit patterns in the task's layout."""
    return {each.name: np.zeros(each.shape, dtype=np.uint16) for each in task.buffers} | {WORKSPACE: workspace}


def load(arrays: Arrays, inputs: Inputs, task: GemmTask) -> None:
    """Copy inputs into their places, as the task's layout has them in memory."""
    for name, bits in zip(("A", "B", task.third), inputs.stored(task.layout), strict=False):
        assert name is not None
        arrays[name][...] = bits
