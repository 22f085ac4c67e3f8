"""Fits a chip's rates, and trains a policy on, with the runs of a calibration; judges both on the shapes that it holds back."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field

import numpy as np

from agent.calibration.calibration_result import Figures
from agent.calibration.calibration_runs import CalibrationRun
from contract.chip import Chip
from policies.schedule.learned.network import Tensors
from policies.schedule.optimiser.pool_prior import PriorOf
from policies.schedule.prior import Floats
from policies.schedule.rate_fitting import TimedWorks, fitted_chip
from policies.training.adapting import adapted
from policies.training.groups import GroupEntries, ScheduleGroup, entries_of, group_with
from policies.training.judging import judged

# Means over the held-back shapes repeat within so much: single screens within 1.5 %.
SAME_LOSS, SAME_CORRELATION = 0.003, 0.01
LOSSES, CORRELATION = ("first over best", "best of 8 over best"), "rank correlation"


def no_worse(after: Figures, before: Figures) -> bool:
    """Whether figures are as good as others, within what repeated measurements differ by. Nothing is no better than nothing."""
    if not after or not before:
        return False
    losses = all(after[name] <= before[name] * (1 + SAME_LOSS) for name in LOSSES)
    return losses and after[CORRELATION] >= before[CORRELATION] - SAME_CORRELATION


@dataclass(frozen=True)
class Adaptation:
    """`held_back`: ids of the tasks that judge. `chip`: with the rates that it came with, as in the runs."""

    chip: Chip
    seed: int
    trained: Sequence[CalibrationRun]
    tested: Sequence[CalibrationRun]
    _entries: dict[str, GroupEntries] = field(default_factory=dict)

    @classmethod
    def of(
        cls,
        runs: Sequence[CalibrationRun],
        held_back: frozenset[str],
        chip: Chip,
        seed: int,
        on_run: Callable[[int], None] = lambda _: None,
    ) -> "Adaptation":
        """Without runs that have too few schedules for a group. `on_run`: called after each with the number so far."""
        entries: dict[str, GroupEntries] = {}
        for number, run in enumerate(runs, 1):
            found = entries_of(run.timed, seed)
            if found is not None:
                entries[run.timed.run_id] = found
            on_run(number)
        kept = [run for run in runs if run.timed.run_id in entries]
        tested = [run for run in kept if run.timed.task.id in held_back]
        return cls(chip, seed, [run for run in kept if run not in tested], tested, entries)

    @property
    def schedules(self) -> int:
        return sum(len(found.entries) for found in self._entries.values())

    def begun_by(self, minutes: float) -> list[CalibrationRun]:
        """The runs to train on that the first minutes of measuring gave."""
        return [run for run in self.trained if run.minute <= minutes]

    def fitted_chip(self) -> Chip:
        """The chip with rates fitted to the runs to train on."""
        timed = []
        for found in (self._entries[run.timed.run_id] for run in self.trained):
            times_us = found.run.baseline_us * np.exp([one.cost for one in found.timed])
            timed.append(TimedWorks(found.run.task, [entry.work for entry in found.entries], times_us))
        return fitted_chip(timed, self.chip)

    def policy(self, start: Tensors | None, runs: Sequence[CalibrationRun], chip: Chip) -> Tensors:
        """Weights after training with `runs` on `chip`. Raises: TrainingFailed."""
        return adapted(start, [group_with(self._entries[run.timed.run_id], chip) for run in runs], self.seed)

    def judged(self, prior_of: PriorOf, chip: Chip) -> Figures:
        """What a prior is worth on the held-back shapes; empty where there is none."""

        def scores_of(group: ScheduleGroup) -> Floats:
            scores: Floats = np.log(
                prior_of(group.task, chip).predict_us(self._entries[group.run_id].entries, group.task, chip)
            )
            return scores

        return judged([group_with(self._entries[run.timed.run_id], chip) for run in self.tested], scores_of)
