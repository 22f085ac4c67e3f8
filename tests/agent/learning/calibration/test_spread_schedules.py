"""Which shapes and schedules a calibration measures."""

import json
import math
from pathlib import Path

from cudal2_agent.agent.learning.calibration.spread_schedules import SpreadSchedules, calibration_tasks, held_back
from cudal2_agent.contract.records.task import AccumulatorType, Arch, GemmTask, TimingMode
from cudal2_agent.contract.records.trajectory import Attempt, Observation
from cudal2_agent.policies.schedule.optimiser.pool_prior import ANALYTIC
from tests.doubles.slower_chip import EXPECTED

HELD_OUT = Path(__file__).parents[4] / "benchmarks" / "campaigns" / "held_out.json"
TASKS = calibration_tasks(Arch.SM_90A, TimingMode.OFFLINE, AccumulatorType.F32)
TASK = GemmTask(m=128, n=128, k=512)


def test_no_shape_is_held_out_of_training() -> None:
    told = json.loads(HELD_OUT.read_text("utf-8"))
    never = {shape for name in ("measured_before", "grid", "off_grid") for shape in told[name]}
    assert len(never) > 200
    assert not never & {task.shape for task in TASKS}


def test_each_beginning_is_spread_over_sizes_of_work() -> None:
    assert len({task.shape for task in TASKS}) == len(TASKS) == 100
    for begin in (0, 40, 80):
        flops = [math.log10(task.flops) for task in TASKS[begin : begin + 10]]
        assert max(flops) - min(flops) > 3


def test_a_quarter_judges_and_is_spread_too() -> None:
    judging = [task for task in TASKS if task.id in held_back(TASKS)]
    assert len(judging) == 25
    assert held_back(TASKS[:12]) == {task.id for task in TASKS[3:12:4]}
    places = {TASKS.index(task) % 5 for task in judging}
    assert places == {0, 1, 2, 3, 4}  # the list goes through five classes of size


def proposed(count: int, attempts: tuple[Attempt, ...] = ()) -> list[dict[str, object]]:
    policy = SpreadSchedules(lambda *_: ANALYTIC, seed=0)
    seen = Observation(task=TASK, chip=EXPECTED, round=1, seed=0, attempts=attempts)
    return [dict(one.origin.schedule or {}) for one in policy.propose(seen, count)]


def test_half_of_the_schedules_are_the_priors_best_and_half_are_spread_over_families() -> None:
    found = proposed(16)
    assert found == proposed(16)
    assert len({tuple(sorted(one.items())) for one in found}) == 16
    assert sorted(str(one["family"]) for one in found[8:]) == ["latency"] * 4 + ["wgmma_tma"] * 4


def test_what_was_tried_is_not_proposed_again() -> None:
    policy = SpreadSchedules(lambda *_: ANALYTIC, seed=0)
    seen = Observation(task=TASK, chip=EXPECTED, round=1, seed=0)
    first = policy.propose(seen, 4)
    attempts = tuple(Attempt(candidate_id=one.id, policy="schedule", schedule=None, status="measured") for one in first)
    again = policy.propose(seen.model_copy(update={"attempts": attempts}), 4)
    assert not {one.id for one in first} & {one.id for one in again}
