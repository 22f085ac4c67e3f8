"""Fitting rates on stored runs of an H200: what is found from wrong expected rates, and what the fit does to the order.

Run from the repository's root: python -m benchmarks.calibration.rates --store trajectories.sqlite [--shapes 30] [--seeds 5]
It prints a table over several draws of shapes: the rates that were expected, those that were fitted to 16 schedules of each
of some shapes, and figures of the analytic prior with both on all schedules of as many other shapes. Held-out shapes take no
part. Needs no GPU.
"""

import argparse
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import NamedTuple

import numpy as np

from benchmarks.calibration.__main__ import SCHEDULES, held_out_lists
from benchmarks.calibration.merged_runs import merged_runs, thinned
from cudal2_agent.contract.plan.chip import REFERENCE_CHIPS, Chip
from cudal2_agent.contract.records.task import Arch, TimingMode
from cudal2_agent.policies.schedule.families.registry import families
from cudal2_agent.policies.schedule.optimiser.pool_entry import PoolEntry, read_entry
from cudal2_agent.policies.schedule.prior import predict_many_us
from cudal2_agent.policies.schedule.rate_fitting import RATES, TimedWorks, fitted_chip
from cudal2_agent.policies.training.groups import ScheduleGroup, TimedRun, read_runs
from cudal2_agent.policies.training.judging import judged
from cudal2_agent.store.store import open_store

H200 = REFERENCE_CHIPS[Arch.SM_90A]
# Factors on the tensor rate, the DRAM rate and the time per launch of an H200.
WRONG = ((1.0, 1.0, 1.0), (0.5, 1.0, 1.0), (2.0, 1.0, 1.0), (1.0, 0.5, 1.0), (1.0, 2.0, 1.0), (1.0, 1.0, 2.0), (0.5, 0.5, 2.0))
FIGURES = ("first within 5 %", "best of 8 within 2 %", "rank correlation")


def timed_works(run: TimedRun) -> tuple[TimedWorks, ScheduleGroup]:
    """The works of a run with their times, and the group that judges the order of their predicted times."""
    known = {family.name: family for family in families(run.task.arch)}
    pairs = [(one, read_entry(known, one.values, run.task, H200)) for one in run.timed]
    kept = [(one, entry) for one, entry in pairs if entry is not None]
    entries: Sequence[PoolEntry] = [entry for _, entry in kept]
    costs = np.array([one.cost for one, _ in kept])
    none = np.zeros(0)
    group = ScheduleGroup(
        run_id=run.run_id,
        task=run.task,
        chip=H200.name,
        baseline=float(np.log(run.baseline_us)),
        features=none.astype(np.float32),
        prior=none,
        costs=costs,
        raced=none.astype(np.bool_),
        rounds=none.astype(np.int64),
        rival_features=none.astype(np.float32),
        rival_prior=none,
    )
    return TimedWorks(run.task, [entry.work for entry in entries], run.baseline_us * np.exp(costs)), group


def figures_of(chip: Chip, judging: Sequence[tuple[TimedWorks, ScheduleGroup]]) -> dict[str, float]:
    """Of the analytic prior with the rates of the chip."""
    works = {group.run_id: timed.works for timed, group in judging}
    return judged([group for _, group in judging], lambda group: predict_many_us(works[group.run_id], group.task, chip))


class Draw(NamedTuple):
    """Shapes to fit to, with few schedules of each, and other shapes to judge by."""

    fitted_to: Sequence[TimedWorks]
    judging: Sequence[tuple[TimedWorks, ScheduleGroup]]


def draws(runs: Sequence[TimedRun], shapes: int, seeds: int) -> Iterator[Draw]:
    for seed in range(seeds):
        rng = np.random.default_rng(seed)
        chosen = [runs[int(place)] for place in rng.permutation(len(runs))[: 2 * shapes]]
        fitted_to = [timed_works(thinned(run, SCHEDULES, rng))[0] for run in chosen[:shapes]]
        yield Draw(fitted_to, [timed_works(run) for run in chosen[shapes:]])


def lines(drawn: Sequence[Draw]) -> Iterator[str]:
    """Two rows for each start: means of the figures over the draws, and of the rates their range."""
    yield f"| rates | {' | '.join(RATES)} | {' | '.join(FIGURES)} |"
    yield f"|---|{'---|' * (len(RATES) + len(FIGURES))}"
    for factors in WRONG:
        rates = {name: getattr(H200, name) * factor for name, factor in zip(RATES, factors, strict=True)}
        expected = H200.model_copy(update=rates)
        yield _line("expected", [expected] * len(drawn), drawn)
        yield _line("fitted", [fitted_chip(draw.fitted_to, expected) for draw in drawn], drawn)


def _line(name: str, chips: Sequence[Chip], drawn: Sequence[Draw]) -> str:
    figures = [figures_of(chip, draw.judging) for chip, draw in zip(chips, drawn, strict=True)]
    found = [sorted({f"{getattr(chip, rate):.3g}" for chip in chips}, key=float) for rate in RATES]
    shown = [each[0] if len(each) == 1 else f"{each[0]} to {each[-1]}" for each in found]
    means = [float(np.mean([one[figure] for one in figures])) for figure in FIGURES]
    shown += [f"{mean:.0%}" if figure.endswith("%") else f"{mean:.3f}" for figure, mean in zip(FIGURES, means, strict=True)]
    return f"| {name} | {' | '.join(shown)} |"


def main() -> None:
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--store", type=Path, required=True)
    parser.add_argument("--shapes", type=int, default=30)
    parser.add_argument("--seeds", type=int, default=5)
    options = parser.parse_args()
    never = held_out_lists()
    with open_store(f"sqlite:///{options.store}") as store:
        runs = read_runs(store, lambda task: task.shape not in never and task.mode is TimingMode.OFFLINE)
    for line in lines(list(draws(merged_runs(runs), options.shapes, options.seeds))):
        print(line)


if __name__ == "__main__":
    main()
