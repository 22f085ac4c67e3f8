"""The runs of a shape as one, and fewer of their schedules."""

import math

import numpy as np

from benchmarks.calibration.merged_runs import merged_runs, thinned
from cudal2_agent.contract.plan.chip import REFERENCE_CHIPS
from cudal2_agent.contract.records.task import Arch, GemmTask
from cudal2_agent.policies.training.groups import TimedRun, TimedSchedule

H200 = REFERENCE_CHIPS[Arch.SM_90A]
SMALL, LARGE = GemmTask(m=64, n=64, k=64), GemmTask(m=512, n=64, k=64)


def run(name: str, task: GemmTask, baseline_us: float, *timed: tuple[int, float, bool]) -> TimedRun:
    schedules = tuple(TimedSchedule({"family": "x", "block_m": tile}, cost, raced, 1) for tile, cost, raced in timed)
    return TimedRun(name, task, H200, schedules, baseline_us)


def test_runs_of_a_task_are_one_and_races_count_before_screens() -> None:
    runs = [
        run("a", LARGE, 2.0, (1, 0.1, False), (2, 0.5, True)),
        run("b", SMALL, 1.0, (1, 0.3, False)),
        run("c", LARGE, 4.0, (1, 0.3, False), (2, 0.9, False)),
        run("empty", SMALL, math.nan),
    ]
    small, large = merged_runs(runs)
    assert (small.task, small.baseline_us) == (SMALL, 1.0)
    assert (large.run_id, large.baseline_us) == ("a+c", 3.0)
    assert [(one.values["block_m"], one.cost, one.raced) for one in large.timed] == [(1, 0.2, False), (2, 0.5, True)]


def test_a_thinner_run_holds_some_of_the_same_schedules() -> None:
    whole = run("a", LARGE, 2.0, *((tile, tile / 10, False) for tile in range(20)))
    thin = thinned(whole, 8, np.random.default_rng(0))
    assert len(thin.timed) == 8
    assert {one.cost for one in thin.timed} < {one.cost for one in whole.timed}
    assert thin.run_id != whole.run_id
