"""Fits a chip's rates, and trains a policy on, with the runs of a calibration; judges both on the shapes that it holds back,
and reports what is used from now on.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np

from cudal2_agent.agent.learning.calibration.calibration_runs import CalibrationRun
from cudal2_agent.contract.base import Record
from cudal2_agent.contract.plan.chip import Chip
from cudal2_agent.policies.schedule.families.registry import families
from cudal2_agent.policies.schedule.learned.network import Tensors
from cudal2_agent.policies.schedule.optimiser.pool_entry import PoolEntry, read_entry
from cudal2_agent.policies.schedule.optimiser.pool_prior import PriorOf
from cudal2_agent.policies.schedule.prior import Floats
from cudal2_agent.policies.schedule.rate_fitting import TimedWorks, fitted_chip
from cudal2_agent.policies.training.groups import ScheduleGroup, group_of
from cudal2_agent.policies.training.judging import judged

Figures = dict[str, float]
# Means over the held-back shapes repeat within so much: single screens within 1.5 %.
SAME_LOSS, SAME_CORRELATION = 0.003, 0.01
LOSSES, CORRELATION = ("first over best", "best of 8 over best"), "rank correlation"


class Adopted(Record):
    """A part that was fitted. `path`: its file, where it is used from now on; None where `reason` says why it is left out."""

    part: str
    path: Path | None
    reason: str


class CalibrationResult(Record):
    """`before`: of what searches used until now. `analytic`, `fitted`: of the analytic prior with expected and fitted rates.
    `shipped`, `policy`: of the policy `base` that was trained on, as it was and adapted. Figures are on `held_back` shapes;
    empty where nothing could be judged.

    `rates`: tensor TFLOP/s, DRAM TB/s and microseconds per launch, expected and fitted.
    """

    chip: str
    kind: str
    minutes: float
    shapes: int
    schedules: int
    held_back: int
    before_name: str = ""
    before: Figures = {}
    analytic: Figures = {}
    fitted: Figures = {}
    shipped: Figures = {}
    policy: Figures = {}
    rates: dict[str, tuple[float, float]] = {}
    base: str | None = None
    adopted: tuple[Adopted, ...] = ()


def no_worse(after: Figures, before: Figures) -> bool:
    """Whether figures are as good as others, within what repeated measurements differ by. Nothing is no better than nothing."""
    if not after or not before:
        return False
    losses = all(after[name] <= before[name] * (1 + SAME_LOSS) for name in LOSSES)
    return losses and after[CORRELATION] >= before[CORRELATION] - SAME_CORRELATION


@dataclass(frozen=True)
class AdaptationShape:
    """A measured shape: its run, its schedules that the families can write, and its group for training, in the same order."""

    run: CalibrationRun
    entries: Sequence[PoolEntry]
    group: ScheduleGroup


def adaptation_shape(run: CalibrationRun, seed: int) -> AdaptationShape | None:
    """None where the run has too few schedules for a group. It takes a second."""
    timed = run.timed
    group = group_of(timed, seed)
    if group is None:
        return None
    known = {family.name: family for family in families(timed.task.arch)}
    read = [read_entry(known, one.values, timed.task, timed.chip) for one in timed.timed]
    return AdaptationShape(run, [entry for entry in read if entry is not None], group)


@dataclass(frozen=True)
class Adaptation:
    """`tested`: shapes that no fit and no training sees."""

    chip: Chip
    seed: int
    trained: Sequence[AdaptationShape]
    tested: Sequence[AdaptationShape]

    @property
    def schedules(self) -> int:
        return sum(len(shape.entries) for shape in (*self.trained, *self.tested))

    def fitted_chip(self) -> Chip:
        """The chip with rates fitted to the shapes to train on."""
        timed = [
            TimedWorks(
                shape.group.task,
                [entry.work for entry in shape.entries],
                np.exp(shape.group.costs + shape.group.baseline),
            )
            for shape in self.trained
        ]
        return fitted_chip(timed, self.chip)

    def policy(self, start: Tensors | None) -> Tensors:
        """Weights adapted to the shapes to train on. Raises: TrainingFailed."""
        from cudal2_agent.policies.training.adapting import adapted  # torch, whose absence is reported before any work

        return adapted(start, [shape.group for shape in self.trained], self.seed)

    def judged(self, prior_of: PriorOf) -> Figures:
        """What a prior is worth on the held-back shapes; empty where there is none."""
        entries = {shape.group.run_id: shape.entries for shape in self.tested}

        def scores_of(group: ScheduleGroup) -> Floats:
            prior = prior_of(group.task, self.chip)
            return prior.predict_us(entries[group.run_id], group.task, self.chip)

        return judged([shape.group for shape in self.tested], scores_of)
