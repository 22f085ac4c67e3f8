"""A policy trained on with a few groups of a chip on which schedules err in another way; and the figures that judge it."""

from functools import partial

import numpy as np
import pytest

from contract.task import GemmTask
from policies.training import adapting
from policies.training.adapting import ANEW, adapted, scores_of
from policies.training.groups import ScheduleGroup, TimedRun, TimedSchedule, group_of
from policies.training.judging import judged
from policies.training.training_plan import NetworkSize
from tests.doubles.timed_runs import H200, drawn_entries, tasks, true_us


def made_group(task: GemmTask, share: float) -> ScheduleGroup:
    entries = drawn_entries(task, count=16)
    costs = np.log(true_us(entries, task, share))
    timed = tuple(TimedSchedule(entry.values, float(cost), False, 1) for entry, cost in zip(entries, costs, strict=True))
    group = group_of(TimedRun(task.shape, task, H200, timed, 1.0))
    assert group is not None
    return group


@pytest.fixture(scope="module")
def known() -> list[ScheduleGroup]:
    return [made_group(task, 1.0) for task in tasks()[:4]]


@pytest.fixture(scope="module")
def other() -> list[ScheduleGroup]:
    """The same schedules on a chip where the error is the opposite."""
    return [made_group(task, -1.0) for task in tasks()[:5]]


def test_it_orders_shapes_of_the_other_chip_better_than_before(
    known: list[ScheduleGroup], other: list[ScheduleGroup], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(adapting, "ANEW", ANEW.model_copy(update={"size": NetworkSize(members=1, width=32, depth=2)}))
    base = adapted(None, known)
    after = adapted(base, other[:3])
    figures = [judged(other[3:], partial(scores_of, weights)) for weights in (base, after)]
    assert figures[1]["rank correlation"] > figures[0]["rank correlation"] + 0.1
    assert figures[1]["first over best"] < figures[0]["first over best"]
    again = adapted(base, other[:3])
    assert all(np.array_equal(after[name], again[name]) for name in after)


def test_the_rank_correlation_of_an_order(known: list[ScheduleGroup]) -> None:
    def correlation(sign: float) -> float:
        return judged(known, lambda group: sign * group.costs)["rank correlation"]

    assert correlation(1.0) == pytest.approx(1.0)
    assert correlation(-1.0) == pytest.approx(-1.0)
    assert correlation(0.0) == 0.0
    tied = judged(known, lambda group: (group.costs > np.median(group.costs)).astype(float))["rank correlation"]
    assert 0.7 < tied < 1.0
