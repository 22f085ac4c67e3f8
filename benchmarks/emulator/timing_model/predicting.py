"""Built kernels traced once, so that they can be predicted under any rates; and the figures that judge predictions."""

import time
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np

from cudal2_agent.contract.plan.chip import REFERENCE_CHIPS
from cudal2_agent.contract.records.build import Built
from cudal2_agent.contract.records.candidate import Candidate
from cudal2_agent.contract.records.inspection import Inspection
from cudal2_agent.contract.records.task import GemmTask
from cudal2_agent.contract.settings.options import CompileOptions
from cudal2_agent.sandbox.building.builder import Builder
from cudal2_agent.sandbox.emulator.loading import load_kernel
from cudal2_agent.sandbox.timing_model.model import Predicted, predict_traced
from cudal2_agent.sandbox.timing_model.rates import TimingRates
from cudal2_agent.sandbox.timing_model.trace import Traced, trace


@dataclass(frozen=True)
class Prepared:
    """`seconds`: CPU time to read the PTX, and to trace."""

    task: GemmTask
    traced: tuple[Traced, ...]
    inspection: Inspection
    seconds: tuple[float, float]

    def predicted(self, rates: TimingRates | None = None) -> Predicted:
        return predict_traced(self.traced, self.inspection, self.task, REFERENCE_CHIPS[self.task.arch], rates)


def prepared(
    pairs: Sequence[tuple[Candidate, GemmTask]], cache: Path, jobs: int, repeats: int = 1
) -> Iterator[tuple[int, Prepared]]:
    """(position, traced kernel) of those that build; of `repeats` traces the one that took least of a shared processor."""
    by_task: dict[GemmTask, list[int]] = {}
    for position, (_, task) in enumerate(pairs):
        by_task.setdefault(task, []).append(position)
    for task, positions in by_task.items():
        builder = Builder(CompileOptions(cache_dir=str(cache), jobs=jobs), REFERENCE_CHIPS[task.arch])
        for place, built in builder.build([pairs[position][0] for position in positions], task, briefly=True):
            if isinstance(built, Built):
                yield positions[place], min((_prepared(built, task) for _ in range(repeats)), key=lambda one: sum(one.seconds))


def _prepared(built: Built, task: GemmTask) -> Prepared:
    plan = built.plan_for(task, REFERENCE_CHIPS[task.arch].sms)
    assert plan is not None  # a candidate with a launch plan
    begin = time.thread_time()
    kernel = load_kernel(built, plan, task)
    read = time.thread_time()
    return Prepared(task, trace(kernel), built.inspection, (read - begin, time.thread_time() - read))


def spearman(one: Sequence[float], other: Sequence[float]) -> float:
    """Rank correlation; ties share the mean of their ranks. NaN for fewer than three."""
    if len(one) < 3:
        return float("nan")
    return float(np.corrcoef(_ranks(np.asarray(one)), _ranks(np.asarray(other)))[0, 1])


def _ranks(values: np.ndarray) -> np.ndarray:
    _, inverse, counts = np.unique(values, return_inverse=True, return_counts=True)
    ranks: np.ndarray = (np.cumsum(counts) - (counts - 1) / 2)[inverse]
    return ranks
