"""A candidate on the emulated machine with one set of inputs, and what a run of it under a schedule is judged to be."""

import math
from collections.abc import Iterator

import numpy as np

from contract.candidate import Candidate
from contract.chip import LIMITS
from contract.plan import resolve
from contract.task import GemmTask
from sandbox.emulator.executor import EmulatorExecutor, Schedules
from sandbox.emulator.kernel import EmulatedKernel
from sandbox.emulator.machine import Conditions, Schedule
from sandbox.verification.cases import GAUSSIAN, PreparedCase
from sandbox.verification.executor import Violation

# Beside what the core finds: D is not the product, and nothing else was wrong.
WRONG_RESULT = "wrong-result"
INPUT_SEED = 1
# The right kernels of the tests execute less than a tenth of it.
MOST_OPERATIONS = 3_000_000
DEADLINE_S = 60.0


def schedules(random: int) -> Iterator[Conditions]:
    """The eager schedule, the latest, and random ones from the seeds 0 on."""
    fixed = ((Schedule.EAGER, 0), (Schedule.LATEST, 0))
    for schedule, seed in (*fixed, *((Schedule.RANDOM, seed) for seed in range(random))):
        yield Conditions(schedule, seed=seed, most_instructions=MOST_OPERATIONS, deadline_s=DEADLINE_S)


class Trial:
    """Raises: Unsupported, PtxError, LaunchRefused where the emulator cannot run the kernel."""

    def __init__(self, ptx: str, candidate: Candidate, task: GemmTask, sms: int) -> None:
        plan = resolve(candidate.plan, task, LIMITS[task.arch], sms)
        self._kernel = EmulatedKernel(candidate.id, ptx, plan, task)
        self._chosen = _Chosen(task, INPUT_SEED, math.inf)
        self._executor = EmulatorExecutor(self._kernel, self._chosen)
        self._prepared = PreparedCase(np, task, GAUSSIAN, INPUT_SEED, keep=True)

    def verdict(self, conditions: Conditions) -> Violation | None:
        """What is wrong with one run, kernels ahead of it still running where the plan allows that; None where nothing is."""
        self._chosen.conditions = conditions
        inputs = self._prepared.inputs
        run = self._executor.run_dependent(inputs, inputs) if self._kernel.programmatic else self._executor.run(inputs)
        if run.violations:
            return run.violations[0]
        found = self._prepared.compare(run.output)
        return Violation(WRONG_RESULT, found.describe()) if found.mismatches else None


class _Chosen(Schedules):
    """The conditions that a test has chosen for the next run."""

    conditions: Conditions

    def next(self) -> Conditions:
        return self.conditions
