"""A candidate on the emulated machine with one set of inputs, and the verdict on a run under an interleaving."""

import math
from collections.abc import Iterator

import numpy as np

from cudal2_agent.contract.plan.chip import LIMITS
from cudal2_agent.contract.plan.resolve import resolve
from cudal2_agent.contract.records.candidate import Candidate
from cudal2_agent.contract.records.task import GemmTask
from cudal2_agent.sandbox.emulator.executor import EmulatorExecutor, Interleavings
from cudal2_agent.sandbox.emulator.kernel import EmulatedKernel
from cudal2_agent.sandbox.emulator.machine import Conditions, Interleaving
from cudal2_agent.sandbox.verification.cases import GAUSSIAN, PreparedCase
from cudal2_agent.sandbox.verification.executor import Violation

# Beside the core's detectors, where there is no other finding: D is not the product.
WRONG_RESULT = "wrong-result"
NOT_RESTORED = "workspace"  # it is not zero again after a run
INPUT_SEED = 1
# The right kernels of the tests execute less than a tenth of this.
MOST_OPERATIONS = 3_000_000
DEADLINE_S = 60.0


def interleavings(random: int) -> Iterator[Conditions]:
    """The eager interleaving, the latest interleaving, and random ones with seeds from 0."""
    fixed = ((Interleaving.EAGER, 0), (Interleaving.LATEST, 0))
    for interleaving, seed in (*fixed, *((Interleaving.RANDOM, seed) for seed in range(random))):
        yield Conditions(interleaving, seed=seed, most_instructions=MOST_OPERATIONS, deadline_s=DEADLINE_S)


class Trial:
    """Raises: Unsupported, PtxError, LaunchRefused where the emulator cannot run the kernel."""

    def __init__(self, ptx: str, candidate: Candidate, task: GemmTask, sms: int) -> None:
        plan = resolve(candidate.plan, task, LIMITS[task.arch], sms)
        self._kernel = EmulatedKernel(candidate.id, ptx, plan, task)
        self._chosen = _Chosen(task, INPUT_SEED, math.inf)
        self._executor = EmulatorExecutor(self._kernel, self._chosen)
        self._prepared = PreparedCase(np, task, GAUSSIAN, INPUT_SEED, keep=True)

    def faults(self) -> list[Violation]:
        """Those of three interleavings: eager, latest and a random one."""
        return [fault for conditions in interleavings(1) if (fault := self.verdict(conditions))]

    def verdict(self, conditions: Conditions) -> Violation | None:
        """The first fault of one run, or None. Preceding kernels still run if the plan allows it."""
        self._chosen.conditions = conditions
        inputs = self._prepared.inputs
        run = self._executor.run_dependent(inputs, inputs) if self._kernel.programmatic else self._executor.run(inputs)
        if run.violations:
            return run.violations[0]
        found = self._prepared.compare(run.output)
        return Violation(WRONG_RESULT, found.describe()) if found.mismatches else None

    def output(self, conditions: Conditions) -> np.ndarray:
        """D of one run. Shape: (m, n)."""
        self._chosen.conditions = conditions
        return self._executor.run(self._prepared.inputs).output


class _Chosen(Interleavings):
    """The conditions of the next run, chosen by a test."""

    conditions: Conditions

    def next(self) -> Conditions:
        return self.conditions
