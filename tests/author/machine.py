"""A machine with a scripted GPU for the author's kernels: builds are real, verification and times are scripted.

The wrong kernel's mistake is known, so its result is computed and passed to the sandbox's own comparison: the report reads
as a GPU's does. Times and counters are invented, in the order that the kernels are designed for.
"""

from collections.abc import Iterator, Sequence
from pathlib import Path
from threading import Event

import numpy as np

from cudal2_agent.contract.plan.chip import REFERENCE_CHIPS, Chip
from cudal2_agent.contract.records.build import Built
from cudal2_agent.contract.records.candidate import AnyCandidate
from cudal2_agent.contract.records.evaluation import AUTOTUNED, BASELINES, Environment, Evaluation, TestResult, Wrong
from cudal2_agent.contract.records.profile import LaunchProfile, Profile
from cudal2_agent.contract.records.task import GemmTask
from cudal2_agent.contract.settings.options import CompileOptions, Effort
from cudal2_agent.sandbox.building.builder import Builder
from cudal2_agent.sandbox.local import LocalSandbox
from cudal2_agent.sandbox.verification.cases import SPARSE
from cudal2_agent.sandbox.verification.comparison import compare_exact
from cudal2_agent.sandbox.verification.draws import Draws
from cudal2_agent.sandbox.verification.elements import Array, decode, encode
from cudal2_agent.sandbox.verification.reference import Reference
from tests import doubles

FOOLED_US = 9.0  # above the roofline's bound, and close enough to it to end a search
WRONG_ORDER = "b[j][0], b[j + 1][0], b[j][1], b[j + 1][1]"
INVENTED_US = {"hgemm_mma": 60.0, "hgemm_ring": 25.0, "hgemm_wgmma": 16.0, "hgemm_cluster": 14.0}
INVENTED_COUNTERS = {
    "hgemm_mma": {"tensor_pct": 15.0, "stall_long_scoreboard": 9.0, "smem_conflicts": 4e6, "smem_wavefronts": 5e6},
    "hgemm_ring": {"tensor_pct": 45.0, "stall_long_scoreboard": 0.5, "smem_conflicts": 0.0, "smem_wavefronts": 1e6},
    "hgemm_wgmma": {"tensor_pct": 70.0, "stall_long_scoreboard": 4.0, "smem_conflicts": 0.0, "smem_wavefronts": 1e6},
    "hgemm_cluster": {"tensor_pct": 80.0, "stall_long_scoreboard": 3.0, "smem_conflicts": 0.0, "smem_wavefronts": 1e6},
}


class Machine:
    """`contract.protocols.Sandbox` for the author's kernels."""

    can_execute = True
    can_measure = True
    builds_cutlass = False
    waited_s = queued_s = 0.0
    environment: Environment = doubles.ENVIRONMENT

    def __init__(self, options: CompileOptions) -> None:
        self.chip: Chip = REFERENCE_CHIPS[doubles.TASK.arch]
        self._builder = Builder(options, self.chip)

    def build(
        self, candidates: Sequence[AnyCandidate], task: GemmTask, cancel: Event | None = None
    ) -> Iterator[tuple[int, Built | Evaluation]]:
        return self._builder.build(candidates, task, cancel)

    def evaluate(self, built: Built, task: GemmTask, effort: Effort) -> Evaluation:
        if WRONG_ORDER in built.candidate.source:
            test = wrong_result(task)
            return Wrong(test=test, tests=(test,), inspection=built.inspection)
        baselines = BASELINES if effort in ("race", "full") else (AUTOTUNED,)
        timed = doubles.measured(INVENTED_US[entry_of(built)], baseline_us=15.0, baselines=baselines, effort=effort)
        return timed.model_copy(update={"inspection": built.inspection})

    def screen(self, built: Sequence[Built], task: GemmTask) -> Iterator[tuple[int, Evaluation]]:
        yield from ((position, self.evaluate(one, task, "screen")) for position, one in enumerate(built))

    def race(self, built: Sequence[Built], task: GemmTask) -> list[Evaluation]:
        return [self.evaluate(one, task, "race") for one in built]

    def witness(self, built: Built, _: GemmTask) -> Evaluation:
        """The author's later kernels are right, as `tests/agent/run/test_strong_author.py` shows with the real emulator."""
        return doubles.unmeasured(INVENTED_US[entry_of(built)], "emulator").model_copy(update={"inspection": built.inspection})

    def profile(self, built: Built, _: GemmTask) -> Profile:
        entry = entry_of(built)
        counted = LaunchProfile(entry=entry, grid=(16, 16, 1), block=(256, 1, 1), metrics=INVENTED_COUNTERS[entry])
        return Profile(tool="invented", metric_set="sm_90a", launches=(counted,), seconds=0.1)

    def artifact(self, built: Built) -> bytes | None:
        return Path(built.artifact_path).read_bytes()

    def close(self) -> None:
        pass


class Fooled(Machine):
    """A GPU on which the wrong kernel passes and is the fastest, with the real emulator as second witness."""

    def __init__(self, options: CompileOptions, emulator: LocalSandbox) -> None:
        super().__init__(options)
        self._emulator = emulator
        self.witnessed: list[str] = []

    def evaluate(self, built: Built, task: GemmTask, effort: Effort) -> Evaluation:
        if WRONG_ORDER in built.candidate.source:
            return doubles.measured(FOOLED_US, baseline_us=15.0).model_copy(update={"inspection": built.inspection})
        return super().evaluate(built, task, effort)

    def witness(self, built: Built, task: GemmTask) -> Evaluation:
        self.witnessed.append(built.candidate.id)
        return self._emulator.verify(built, task)

    def close(self) -> None:
        self._emulator.close()


def entry_of(built: Built) -> str:
    return built.inspection.kernels[0].entry


def wrong_result(task: GemmTask) -> TestResult:
    """The first exact test's report on the kernel that exchanges B's fragments."""
    inputs = SPARSE.make(Draws(np, 0), task)
    a, b = (decode(np, bits, task.element).astype(np.float64) for bits in (inputs.a, inputs.b))
    comparison = compare_exact(np, task, encode(np, a @ mixed_up(b), task.element), Reference(np, task, inputs, keep=False))
    return TestResult(tier=SPARSE.tier, name=SPARSE.name, passed=False, worst=comparison.worst, message=comparison.describe())


def mixed_up(b: Array) -> Array:
    """B as the tensor cores receive it when the two middle registers of `ldmatrix.x4.trans` are exchanged.

    In every 16x16 block, k 8..15 of the first 8 columns and k 0..7 of the last 8 are exchanged. Shape: (K, N).
    """
    blocks = b.reshape(b.shape[0] // 16, 2, 8, b.shape[1] // 16, 2, 8).copy()
    blocks[:, 1, :, :, 0], blocks[:, 0, :, :, 1] = blocks[:, 0, :, :, 1].copy(), blocks[:, 1, :, :, 0].copy()
    return blocks.reshape(b.shape)
