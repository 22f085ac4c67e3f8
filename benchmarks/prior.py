"""How well the analytic prior ranks schedules, and how many candidates a search needs, on stored steps of an H200.

Run from the repository's root, with a store that holds the sweep:
  cudal2-agent trajectories import benchmarks/results/h200_sweep_2026-11-22.sweep.zst
  python -m benchmarks.prior [--mode server] [--replay]
Prints JSON. The shapes are split into a half for tuning and a half to judge by; `held_out` are those of `h200/held_out.json`,
by which nothing may be tuned.
`spearman`: rank correlation of predicted and measured times, mean over the shapes. `regret_8`: by how much the best of the
prior's first 8 schedules is slower than the best stored one, mean over the shapes. `replay`: the same regret of the search's
own choice, by number of candidates and size of rounds; `lag`: a round is chosen before the round before it was measured.
Caveat: the stored steps were chosen by an earlier search, so that they hold few schedules that its prior thought slow.
"""

import argparse
import json
import statistics
from collections import defaultdict
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass

import numpy as np

from benchmarks.h200.grid import held_out
from cudal2_agent.contract.plan.chip import Chip
from cudal2_agent.contract.records.task import GemmTask, TimingMode
from cudal2_agent.contract.settings.settings import load_settings
from cudal2_agent.policies.schedule.families.registry import families
from cudal2_agent.policies.schedule.optimiser.acquisition import rank_by_draws, rank_by_prior
from cudal2_agent.policies.schedule.optimiser.encoding import Encoding
from cudal2_agent.policies.schedule.optimiser.pool_entry import Key, PoolEntry, Values, read_entry
from cudal2_agent.policies.schedule.optimiser.pool_prior import ANALYTIC
from cudal2_agent.policies.schedule.optimiser.surrogate import Surrogate
from cudal2_agent.policies.schedule.prior import Floats, predict_many_us
from cudal2_agent.store.store import Store, open_store

MIN_STEPS = 16  # of a shape that takes part
SEEDS = 3


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
        if run.task.mode is not mode or "H200" not in run.chip.name:
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


def replay(one: TimedSchedules, size: int, total: int, seed: int, *, lag: bool) -> list[int]:
    """The schedules that a search would measure, of those stored: a round by the prior, then rounds by draws."""
    rng = np.random.default_rng(seed)
    encode = Encoding(one.entries)
    chosen: list[int] = []
    while len(chosen) < min(total, len(one.entries)):
        free = [index for index in range(len(one.entries)) if index not in chosen]
        known = chosen[: max(len(chosen) - size, 0)] if lag else chosen
        if known:
            errors = np.log(one.measured_us[known] / one.predicted_us[known])
            learned = Surrogate(encode.fitted[known], errors)
            picked = rank_by_draws(one.predicted_us[free], encode.fitted[free], learned, rng, size)
        else:
            places = {id(one.entries[index]): place for place, index in enumerate(free)}
            ranked = rank_by_prior(
                [one.entries[index] for index in free],
                one.predicted_us[free],
                [one.entries[index] for index in chosen],
                ANALYTIC.crowding,
            )
            picked = [places[id(entry)] for _, entry in zip(range(size), ranked, strict=False)]
        chosen += [free[place] for place in picked]
    return chosen[:total]


def replay_figures(tasks: Sequence[TimedSchedules]) -> dict[str, Mapping[str, float]]:
    figures: dict[str, Mapping[str, float]] = {}
    for size, lag in ((4, False), (8, False), (8, True), (12, False), (16, False)):
        row = {}
        for total in (8, 16, 24, 32):
            regrets = [one.regret(replay(one, size, total, seed, lag=lag)) for one in tasks for seed in range(SEEDS)]
            row[f"regret_{total}"] = round(_mean(regrets), 4)
            row[f"within_1pct_{total}"] = round(_mean(regret < 0.01 for regret in regrets), 3)
        figures[f"rounds of {size}{', lag' if lag else ''}"] = row
    return figures


def _mean(values: Iterator[float] | Sequence[float]) -> float:
    return float(np.mean(list(values)))


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else None)
    parser.add_argument("--mode", type=TimingMode, choices=list(TimingMode), default=TimingMode.OFFLINE)
    parser.add_argument("--replay", action="store_true", help="replay searches as well, which takes minutes")
    arguments = parser.parse_args()
    with open_store(load_settings().store_url) as store:
        measured = list(measured_tasks(store, arguments.mode))
    left_out = held_out()
    tasks = [one for one in measured if one.task.shape not in left_out]
    parts = {"tuning": tasks[::2], "judging": tasks[1::2]}
    parts["held_out"] = [one for one in measured if one.task.shape in left_out]
    print(
        json.dumps(
            {
                **{
                    name: {"names": [one.task.shape for one in part], **prior_figures(part)}
                    for name, part in parts.items()
                    if part
                },
                **({"replay": replay_figures(tasks)} if arguments.replay else {}),
            },
            indent=1,
        )
    )


if __name__ == "__main__":
    main()
