"""A GPU that nobody has measured: slower than its expected rates say, in known ways, and kinder to some schedules."""

from collections.abc import Iterator, Sequence
from itertools import islice
from threading import Event

import numpy as np

from cudal2_agent.contract.plan.chip import REFERENCE_CHIPS, Chip
from cudal2_agent.contract.records.build import Built
from cudal2_agent.contract.records.candidate import AnyCandidate
from cudal2_agent.contract.records.evaluation import AUTOTUNED, Evaluation
from cudal2_agent.contract.records.task import Arch, GemmTask
from cudal2_agent.contract.reward.roofline import roofline_us
from cudal2_agent.contract.settings.options import Effort
from cudal2_agent.policies.schedule.families.registry import families
from cudal2_agent.policies.schedule.optimiser.pool_entry import PoolEntry, entry_of, read_entry
from cudal2_agent.policies.schedule.prior import predict_many_us
from tests.doubles.scripted import INSPECTION, ScriptedSandbox, measured

EXPECTED = REFERENCE_CHIPS[Arch.SM_90A].model_copy(update={"name": "Slow 90", "measured": False})
TRUE = EXPECTED.model_copy(update={"tensor_tflops": 420.0, "dram_tbps": 2.1, "launch_us": 1.1})


def slower_us(entries: Sequence[PoolEntry], task: GemmTask, kindness: float) -> list[float]:
    """The analytic prior's times at the true rates; kernels of which many fit on an SM are better than it thinks."""
    times_us = predict_many_us([entry.work for entry in entries], task, TRUE)
    return [float(us * np.exp(-kindness * entry.work.ctas_per_sm)) for us, entry in zip(times_us, entries, strict=True)]


def good_entries(task: GemmTask, count: int = 12) -> list[PoolEntry]:
    """The best by the expected rates among a part of each family's space, which takes less time than a pool."""
    found = [
        entry_of(family, schedule, task, EXPECTED)
        for family in families(task.arch)
        if family.supports(task)
        for schedule in islice(family.space(task, EXPECTED), 0, None, 61)
    ]
    times_us = predict_many_us([entry.work for entry in found], task, EXPECTED)
    return [found[int(place)] for place in np.argsort(times_us, kind="stable")[:count]]


class SlowerSandbox(ScriptedSandbox):
    """Measures the schedules of a task as the slower GPU would, against a baseline of twice the roofline.

    `lasts`: tasks that it measures before it is interrupted. `kindness`: of ln(time), per CTA that fits on an SM.
    """

    def __init__(self, lasts: int | None = None, kindness: float = 0.08) -> None:
        super().__init__()
        self.tasks: list[GemmTask] = []
        self._lasts, self._kindness = lasts, kindness

    @property
    def chip(self) -> Chip:
        return EXPECTED

    def evaluate(self, built: Built, task: GemmTask, effort: Effort) -> Evaluation:
        if task not in self.tasks:
            if self._lasts is not None and len(self.tasks) == self._lasts:
                raise KeyboardInterrupt
            self.tasks.append(task)
        known = {family.name: family for family in families(task.arch)}
        entry = read_entry(known, built.candidate.origin.schedule or {}, task, EXPECTED)
        assert entry is not None
        [time_us] = slower_us([entry], task, self._kindness)
        return measured(time_us, baseline_us=2 * roofline_us(task, TRUE), baselines=(AUTOTUNED,), effort=effort)

    def build(
        self,
        candidates: Sequence[AnyCandidate],
        task: GemmTask,  # noqa: ARG002
        cancel: Event | None = None,  # noqa: ARG002
    ) -> Iterator[tuple[int, Built | Evaluation]]:
        for position, one in enumerate(candidates):
            yield position, Built(candidate=one, inspection=INSPECTION, artifact_path="", cached=False, seconds=0.01)
