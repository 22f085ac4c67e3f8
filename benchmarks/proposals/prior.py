"""How well the analytic prior ranks schedules, on stored steps of an H200. Constants of the prior were fitted by it.

Run from the repository's root, with a store that holds the sweep:
  cudal2-agent trajectories import benchmarks/results/h200_sweep_2026-11-22.sweep.zst
  python -m benchmarks.proposals.prior [--mode server]
Prints JSON. The shapes are split into a half for tuning and a half to judge by. `held_out` are those of
`benchmarks/campaigns/held_out.json`, by which nothing may be tuned.
`spearman`: rank correlation of predicted and measured times, mean over the shapes. `regret_8`: by how much the best of the
prior's first 8 schedules is slower than the best stored one, mean over the shapes.
Caveat: the stored steps were chosen by an earlier search, so that they hold few schedules that its prior thought slow.
"""

import json
import statistics
from collections import defaultdict
from collections.abc import Iterator, Sequence
from dataclasses import dataclass

import numpy as np

from benchmarks.harness import execute, script
from benchmarks.speed.grid import held_out
from cudal2_agent.contract.plan.chip import Chip
from cudal2_agent.contract.records.task import GemmTask, TimingMode
from cudal2_agent.contract.settings.settings import load_settings
from cudal2_agent.policies.schedule.families.registry import families
from cudal2_agent.policies.schedule.optimiser.pool_entry import Key, PoolEntry, Values, read_entry
from cudal2_agent.policies.schedule.prior import Floats, predict_many_us
from cudal2_agent.store.store import Store, open_store

MIN_STEPS = 16  # of a shape that takes part


@dataclass(frozen=True)
class TimedSchedules:
    """The schedules of one task that were measured, each once, with their times."""

    task: GemmTask
    chip: Chip
    entries: Sequence[PoolEntry]
    predicted_us: Floats
    measured_us: Floats

    @property
    def spearman(self) -> float:
        predicted, measured = (np.argsort(np.argsort(times)) for times in (self.predicted_us, self.measured_us))
        return float(np.corrcoef(predicted, measured)[0, 1])

    def regret(self, chosen: Sequence[int]) -> float:
        return float(self.measured_us[list(chosen)].min() / self.measured_us.min() - 1)


def measured_tasks(store: Store, mode: TimingMode = TimingMode.OFFLINE) -> Iterator[TimedSchedules]:
    """The tasks of an H200 in a timing mode that have steps enough."""
    times: dict[tuple[GemmTask, Chip], dict[Key, tuple[Values, list[float]]]] = defaultdict(dict)
    for trajectory in store.trajectories():
        run = trajectory.run
        if not isinstance(run.task, GemmTask) or run.task.mode is not mode or "H200" not in run.chip.name:
            continue
        for step in trajectory.steps:
            values, time_us = step.candidate.origin.schedule, step.evaluation.time_us
            if values and time_us is not None:
                known = times[run.task, run.chip].setdefault(frozenset(values.items()), (dict(values), []))
                known[1].append(time_us)
    for (task, chip), schedules in sorted(times.items(), key=lambda item: item[0][0].shape):
        found = [(entry_of(values, task, chip), statistics.median(samples)) for values, samples in schedules.values()]
        kept = [(entry, time_us) for entry, time_us in found if entry is not None]
        if len(kept) >= MIN_STEPS:
            entries = [entry for entry, _ in kept]
            predicted_us = predict_many_us([entry.work for entry in entries], task, chip)
            yield TimedSchedules(task, chip, entries, predicted_us, np.array([time_us for _, time_us in kept]))


def entry_of(values: Values, task: GemmTask, chip: Chip) -> PoolEntry | None:
    """The entry of a stored schedule; None where no family of today can write it."""
    return read_entry({family.name: family for family in families(task.arch)}, values, task, chip)


def prior_figures(tasks: Sequence[TimedSchedules]) -> dict[str, float]:
    figures = {"shapes": float(len(tasks)), "spearman": _mean(one.spearman for one in tasks)}
    for count in (1, 4, 8, 16):
        figures[f"regret_{count}"] = _mean(one.regret(np.argsort(one.predicted_us)[:count].tolist()) for one in tasks)
    return {name: round(value, 4) for name, value in figures.items()}


def _mean(values: Iterator[float] | Sequence[float]) -> float:
    return float(np.mean(list(values)))


def main() -> None:
    parser = script(__file__, __doc__)
    parser.add_argument("--mode", type=TimingMode, choices=list(TimingMode), default=TimingMode.OFFLINE)
    arguments = parser.parse_args()
    with open_store(load_settings().store_url) as store:
        measured = list(measured_tasks(store, arguments.mode))
    left_out = held_out()
    tasks = [one for one in measured if one.task.shape not in left_out]
    parts = {"tuning": tasks[::2], "judging": tasks[1::2]}
    parts["held_out"] = [one for one in measured if one.task.shape in left_out]
    figures = {name: {"names": [one.task.shape for one in part], **prior_figures(part)} for name, part in parts.items() if part}
    print(json.dumps(figures, indent=1))


if __name__ == "__main__":
    execute(main)
