"""All finished runs of a task as one, so that shapes count alike however often they were searched."""

from collections import defaultdict
from collections.abc import Iterable

import numpy as np

from cudal2_agent.policies.schedule.optimiser.pool_entry import Key, schedule_key
from cudal2_agent.policies.training.groups import TimedRun, TimedSchedule


def merged_runs(runs: Iterable[TimedRun]) -> list[TimedRun]:
    """One run for each task and chip, by shape. Of a schedule in several runs the median of its races, else screens."""
    of_task: dict[tuple[object, ...], list[TimedRun]] = defaultdict(list)
    for run in runs:
        of_task[run.task, run.chip].append(run)
    merged = [_merged(found) for found in of_task.values()]
    return sorted((run for run in merged if run.timed), key=lambda run: (run.task.m, run.task.n, run.task.k))


def thinned(run: TimedRun, count: int, rng: np.random.Generator) -> TimedRun:
    """The run with `count` of its schedules, drawn without replacement: about as many as a calibration measures."""
    places = sorted(int(place) for place in rng.permutation(len(run.timed))[:count])
    return run._replace(run_id=f"{run.run_id}-{count}", timed=tuple(run.timed[place] for place in places))


def _merged(runs: list[TimedRun]) -> TimedRun:
    found: dict[Key, list[TimedSchedule]] = defaultdict(list)
    for one in (one for run in runs for one in run.timed):
        found[schedule_key(one.values)].append(one)
    timed = tuple(_median(each) for each in found.values())
    baseline_us = float(np.median([run.baseline_us for run in runs if run.timed] or [np.nan]))
    return TimedRun("+".join(run.run_id for run in runs), runs[0].task, runs[0].chip, timed, baseline_us)


def _median(found: list[TimedSchedule]) -> TimedSchedule:
    raced = [one for one in found if one.raced]
    cost = float(np.median([one.cost for one in raced or found]))
    return TimedSchedule(found[0].values, cost, bool(raced), min(one.round for one in found))
