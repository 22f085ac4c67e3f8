"""The stored sweeps: of each task the schedules that earlier runs tried, with their speed over cuBLASLt-AutoTuning.

A schedule counts as in `agent/bench/proposals/proposal_figures.py`: by its race, else by its screen times the median of raced
over screened ratio of its run. Of a schedule in several runs of a task the median counts. Schedules that this version cannot
write any more are left out.
"""

import math
from collections import defaultdict
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from statistics import median
from typing import Any

import numpy as np
from sqlalchemy import select

from benchmarks.proposals.prior import entry_of
from cudal2_agent.agent.bench.proposals.proposal_figures import worths_of
from cudal2_agent.agent.bench.proposals.proposal_rows import ProposalRow
from cudal2_agent.contract.plan.chip import REFERENCE_CHIPS, Chip
from cudal2_agent.contract.records.evaluation import AUTOTUNED, Timing
from cudal2_agent.contract.records.task import GemmTask, TimingMode
from cudal2_agent.contract.reward.speedup import ScreenedTime, median_us, paired_ratio, steady_speedups
from cudal2_agent.policies.schedule.optimiser.pool_entry import Key, PoolEntry, launched_programmatically
from cudal2_agent.policies.schedule.prior import Floats
from cudal2_agent.store import tables
from cudal2_agent.store.reader import PlainReader
from cudal2_agent.store.store import Store

Wanted = Callable[[GemmTask], bool]
Tries = Mapping[Key, float | None]
DECIDING = ("race", "full")


@dataclass(frozen=True)
class Sweep:
    """The schedules of one task that were tried on one chip. `ratios`: speed over AutoTuning; not a number where it failed."""

    task: GemmTask
    chip: Chip
    entries: Sequence[PoolEntry]
    ratios: Floats

    @property
    def best(self) -> float:
        return float(np.nanmax(self.ratios))


def stored_sweeps(store: Store, wanted: Wanted = lambda _: True) -> list[Sweep]:
    """The sweeps of wanted tasks by shape, of those in which a schedule ran."""
    tries: dict[tuple[GemmTask, Chip], dict[Key, list[float | None]]] = defaultdict(lambda: defaultdict(list))
    with store.reading() as (connection, reader):
        for run in connection.execute(select(tables.runs)).all():
            told = reader.run(run)
            task = GemmTask.model_validate(told["task"])
            if wanted(task):
                of_task = tries[task, Chip.model_validate(told["chip"])]
                indices = connection.execute(select(tables.steps.c.index).where(tables.steps.c.run == run.key)).scalars().all()
                for key, ratio in _tries(reader, run.key, indices, task.mode).items():
                    of_task[key].append(ratio)
    found = (_sweep(task, chip, of_task) for (task, chip), of_task in tries.items())
    return sorted((one for one in found if one is not None), key=lambda one: (one.task.m, one.task.n, one.task.k))


def sweeps_of_rows(rows: Sequence[ProposalRow]) -> list[Sweep]:
    """What a bench of proposals measured, of all arms and of the schedules that led earlier runs: a sweep per row.

    Rows of the reference chips alone count, whose rates are known.
    """
    chips = {chip.name: chip for chip in REFERENCE_CHIPS.values()}
    found = []
    for row in rows:
        if row.basis == "measured" and row.chip in chips:
            worths = worths_of(row)
            tries = {frozenset(one.schedule.items()): [worths.get(one.candidate_id)] for one in row.candidates if one.schedule}
            found.append(_sweep(row.task, chips[row.chip], tries))
    return [one for one in found if one is not None]


def _tries(reader: PlainReader, run: int, indices: Sequence[int], mode: TimingMode) -> Tries:
    """The schedules of a run with their ratios; None where the last word on one is a failure."""
    told = [(parts["origin"]["schedule"], parts["evaluation"]) for _, parts in reader.step_parts(run, indices)]
    steps = [(frozenset(values.items()), evaluation) for values, evaluation in told if values]
    timed = [(place, one) for place, (key, evaluation) in enumerate(steps) if (one := _timed(key, evaluation, mode))]
    speedups = steady_speedups([one for _, one in timed])
    ratios = {place: speedup for (place, _), speedup in zip(timed, speedups, strict=True)}
    screened: dict[Key, float | None] = {}
    raced: dict[Key, float | None] = {}
    for place, (key, evaluation) in enumerate(steps):
        (raced if evaluation.get("effort") in DECIDING else screened)[key] = ratios.get(place)
    gaps = [ratio / before for key, ratio in raced.items() if ratio and (before := screened.get(key))]
    gap = median(gaps) if gaps else 1.0
    return {key: ratio and ratio * gap for key, ratio in screened.items()} | raced


def _timed(key: Key, evaluation: Mapping[str, Any], mode: TimingMode) -> ScreenedTime | None:
    """None for what was not measured, or not beside AutoTuning."""
    if evaluation["status"] != "measured":
        return None
    baseline = next((one for one in evaluation["baselines"] if one["name"] == AUTOTUNED), None)
    if baseline is None:
        return None
    timing = Timing.model_validate(evaluation["timing"])
    overlaps = mode is TimingMode.OFFLINE and launched_programmatically(dict(key))
    return ScreenedTime(median_us(timing), paired_ratio(timing, Timing.model_validate(baseline)), overlaps)


def _sweep(task: GemmTask, chip: Chip, tries: Mapping[Key, Sequence[float | None]]) -> Sweep | None:
    entries: dict[Key, PoolEntry] = {}
    ratios: dict[Key, list[float]] = defaultdict(list)
    for key, found in tries.items():
        entry = entry_of(dict(key), task, chip)
        if entry is not None:  # its key holds axes that a record of an older version lacks
            entries[entry.key] = entry
            ratios[entry.key] += [ratio for ratio in found if ratio is not None]
    if not any(ratios.values()):
        return None
    table = [median(ratios[key]) if ratios[key] else math.nan for key in entries]
    return Sweep(task, chip, list(entries.values()), np.array(table, dtype=np.float64))
