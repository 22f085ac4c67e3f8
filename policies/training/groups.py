"""What a schedule policy learns from: the schedules of each stored run with their times, and schedules that were not tried.

Each run is a group. Costs are logarithms of the time over that of cuBLASLt-AutoTuning in the same run, so that they are free of
clocks and comparable between runs of a task. A schedule that raced counts with its race, else with its screen.
"""

from collections.abc import Callable
from dataclasses import dataclass
from functools import lru_cache
from typing import NamedTuple

import numpy as np
import numpy.typing as npt
from sqlalchemy import Connection, select

from cudal2_agent.contract.plan.chip import Chip
from cudal2_agent.contract.records.candidate import ScheduleValue
from cudal2_agent.contract.records.task import GemmTask, TimingMode
from cudal2_agent.contract.reward.speedup import ScreenedTime, steady_speedups, usual_baseline_us
from cudal2_agent.policies.schedule.families.registry import families
from cudal2_agent.policies.schedule.learned.features import features_of
from cudal2_agent.policies.schedule.optimiser.pool_entry import (
    Key,
    PoolEntry,
    launched_programmatically,
    read_entry,
    schedule_key,
)
from cudal2_agent.policies.schedule.optimiser.schedule_pool import SchedulePool
from cudal2_agent.policies.schedule.prior import Floats
from cudal2_agent.store import tables
from cudal2_agent.store.reader import PlainReader
from cudal2_agent.store.store import Store

MIN_SCHEDULES = 4  # of a run; fewer say little
RIVALS = 256  # schedules of a task that no run tried: half of them drawn, half the best by the analytic prior
RACED = frozenset({"race", "full"})

Wanted = Callable[[GemmTask], bool]


class TimedSchedule(NamedTuple):
    """One schedule of a run. `cost`: ln(time / AutoTuning's). `round`: in which it was proposed first."""

    values: dict[str, ScheduleValue]
    cost: float
    raced: bool
    round: int


class TimedRun(NamedTuple):
    """What a group is made of. `baseline_us`: median time of cuBLASLt-AutoTuning."""

    run_id: str
    task: GemmTask
    chip: Chip
    timed: tuple[TimedSchedule, ...]
    baseline_us: float


@dataclass(frozen=True)
class ScheduleGroup:
    """The schedules of one run. `baseline`: ln of AutoTuning's time in microseconds.

    `features`, `prior`: as `features_of` gives them, and `costs`, `raced`, `rounds` for the same entries. `rival_*`: the same
    of schedules that the run did not try. Shape: (schedules, columns), (schedules,), (rivals, columns), (rivals,).
    """

    run_id: str
    task: GemmTask
    chip: str
    baseline: float
    features: npt.NDArray[np.float32]
    prior: Floats
    costs: Floats
    raced: npt.NDArray[np.bool_]
    rounds: npt.NDArray[np.int64]
    rival_features: npt.NDArray[np.float32]
    rival_prior: Floats


def read_runs(store: Store, wanted: Wanted = lambda _: True) -> list["TimedRun"]:
    """The finished runs of wanted tasks, by name. Raises: StoreError."""
    with store.reading() as (connection, reader):
        rows = connection.execute(select(tables.runs).where(tables.runs.c.status == "finished").order_by(tables.runs.c.run_id))
        records = [(row, reader.run(row)) for row in rows]
        runs = [(row, GemmTask.model_validate(plain["task"]), Chip.model_validate(plain["chip"])) for row, plain in records]
        return [
            TimedRun(row.run_id, task, chip, *_timed(connection, reader, row.key, task.mode))
            for row, task, chip in runs
            if wanted(task)
        ]


def group_of(run: "TimedRun", seed: int = 0) -> ScheduleGroup | None:
    """None where fewer than `MIN_SCHEDULES` of the schedules can be written by the families as they are now."""
    task, chip = run.task, run.chip
    known = {family.name: family for family in families(task.arch)}
    pairs = [(one, entry) for one in run.timed if (entry := read_entry(known, one.values, task, chip)) is not None]
    if len(pairs) < MIN_SCHEDULES:
        return None
    features, prior = features_of([entry for _, entry in pairs], task, chip)
    others = _rivals(task, chip, {entry.key for _, entry in pairs}, seed)
    rival_features, rival_prior = features_of(others, task, chip)
    return ScheduleGroup(
        run_id=run.run_id,
        task=task,
        chip=chip.name,
        baseline=float(np.log(run.baseline_us)),
        features=features.astype(np.float32),
        prior=prior,
        costs=np.array([one.cost for one, _ in pairs]),
        raced=np.array([one.raced for one, _ in pairs]),
        rounds=np.array([one.round for one, _ in pairs]),
        rival_features=rival_features.astype(np.float32),
        rival_prior=rival_prior,
    )


def _rivals(task: GemmTask, chip: Chip, tried: set[Key], seed: int) -> list[PoolEntry]:
    """Schedules of the task's spaces that were not tried: half of them the best by the analytic prior, half drawn."""
    pool = _pool(task, chip, seed)
    order = np.argsort(pool.predicted_us, kind="stable")
    free = [int(place) for place in order if pool.entries[place].key not in tried]
    best, rest = free[: RIVALS // 2], free[RIVALS // 2 :]
    drawn = np.random.default_rng(seed).permutation(len(rest))[: RIVALS - len(best)]
    return [pool.entries[place] for place in (*best, *(rest[int(one)] for one in drawn))]


@lru_cache(maxsize=1)  # the runs of a task follow each other, and sampling its spaces takes seconds
def _pool(task: GemmTask, chip: Chip, seed: int) -> SchedulePool:
    return SchedulePool(families(task.arch), task, chip, seed)


def _timed(connection: Connection, reader: PlainReader, run: int, mode: TimingMode) -> tuple[tuple[TimedSchedule, ...], float]:
    """The schedules of a run that were timed, each once, in the order in which they were proposed, and AutoTuning's time.

    Costs are of speedups under equal conditions (`contract.reward.speedup.steady_speedups`).
    """
    own = tables.steps.c
    query = (
        select(own.index, own.round, own.speedup, own.time_us)
        .where((own.run == run) & own.speedup.is_not(None))
        .order_by(own.index)
    )
    steps = {index: (round_, speedup, time_us) for index, round_, speedup, time_us in connection.execute(query)}
    known = [(index, parts) for index, parts in reader.step_parts(run, list(steps)) if parts["origin"]["schedule"]]
    offline = mode is TimingMode.OFFLINE
    screened = [
        ScreenedTime(steps[index][2], steps[index][1], offline and launched_programmatically(parts["origin"]["schedule"]))
        for index, parts in known
    ]
    baseline_us = usual_baseline_us(screened) if screened else np.nan
    found: dict[Key, TimedSchedule] = {}
    for (index, parts), speedup in zip(known, steady_speedups(screened), strict=True):
        values = parts["origin"]["schedule"]
        raced = parts["evaluation"].get("effort") in RACED
        before = found.get(schedule_key(values))
        if before is None or raced or not before.raced:
            first = steps[index][0] if before is None else before.round
            found[schedule_key(values)] = TimedSchedule(values, -float(np.log(speedup)), raced, first)
    return tuple(found.values()), baseline_us
