"""A policy trained on with a few groups of a chip on which schedules err in another way; and the figures that judge it."""

from functools import partial
from typing import Any

import numpy as np
import pytest

from cudal2_agent.contract.records.task import GemmTask
from cudal2_agent.policies.schedule.learned.network import Tensors
from cudal2_agent.policies.training import adapting
from cudal2_agent.policies.training.adapting import ANEW, adapted, scores_of
from cudal2_agent.policies.training.groups import ScheduleGroup, TimedRun, TimedSchedule, group_of
from cudal2_agent.policies.training.judging import judged
from cudal2_agent.policies.training.training_plan import NetworkSize
from tests.doubles.timed_runs import H200, drawn_entries, tasks, true_us


def made_group(task: GemmTask, share: float, seed: int = 0) -> ScheduleGroup:
    entries = drawn_entries(task, count=16, seed=seed)
    costs = np.log(true_us(entries, task, share))
    timed = tuple(TimedSchedule(entry.values, float(cost), False, 1) for entry, cost in zip(entries, costs, strict=True))
    group = group_of(TimedRun(task.shape, task, H200, timed, 1.0))
    assert group is not None
    return group


SMALL = NetworkSize(members=1, width=32, depth=2)
LEARNED = 6  # shapes, of which three decide how far to go


@pytest.fixture(scope="module")
def known() -> list[ScheduleGroup]:
    return [made_group(task, 1.0) for task in tasks()[:4]]


@pytest.fixture(scope="module")
def other() -> list[ScheduleGroup]:
    """The same schedules on a chip where the error is the opposite."""
    return [made_group(task, -1.0) for task in tasks()]


@pytest.fixture(autouse=True)
def _few_decide(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(adapting, "APART", 2)
    monkeypatch.setattr(adapting, "MIN_APART", 3)


@pytest.fixture(scope="module")
def base(known: list[ScheduleGroup]) -> Tensors:
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(adapting, "ANEW", ANEW.model_copy(update={"size": SMALL}))
        return adapted(None, known)


@pytest.mark.slow
def test_it_orders_shapes_of_the_other_chip_better_than_before(base: Tensors, other: list[ScheduleGroup]) -> None:
    after = adapted(base, other[:LEARNED])
    figures = [judged(other[LEARNED:], partial(scores_of, weights)) for weights in (base, after)]
    assert figures[1]["rank correlation"] > figures[0]["rank correlation"] + 0.1
    assert figures[1]["first over best"] < figures[0]["first over best"]
    again = adapted(base, other[:LEARNED])
    assert all(np.array_equal(after[name], again[name]) for name in after)


def adapted_and_trained(monkeypatch: pytest.MonkeyPatch, base: Tensors, groups: list[ScheduleGroup]) -> tuple[Tensors, Tensors]:
    """What comes out, and the weights of the last training."""
    trained: list[Tensors] = []
    real = adapting._trained

    def kept(*given: Any) -> Tensors:
        trained.append(real(*given))
        return trained[-1]

    monkeypatch.setattr(adapting, "_trained", kept)
    return adapted(base, groups), trained[-1]


def test_where_the_base_is_far_off_the_whole_way_is_gone(
    monkeypatch: pytest.MonkeyPatch, base: Tensors, other: list[ScheduleGroup]
) -> None:
    after, trained = adapted_and_trained(monkeypatch, base, other[:LEARNED])
    assert all(np.array_equal(after[name], trained[name]) for name in after)


def test_a_few_shapes_go_a_quarter_of_the_way(
    monkeypatch: pytest.MonkeyPatch, base: Tensors, other: list[ScheduleGroup]
) -> None:
    after, trained = adapted_and_trained(monkeypatch, base, other[:3])
    assert all(np.allclose(after[name] - base[name], (trained[name] - base[name]) / 4, atol=1e-6) for name in after)
    assert any(not np.array_equal(after[name], base[name]) for name in after)


def test_shapes_that_the_base_knows_go_a_quarter_of_the_way(monkeypatch: pytest.MonkeyPatch, base: Tensors) -> None:
    after, trained = adapted_and_trained(monkeypatch, base, [made_group(task, 1.0, seed=1) for task in tasks()[:LEARNED]])
    assert all(np.allclose(after[name] - base[name], (trained[name] - base[name]) / 4, atol=1e-6) for name in after)


def test_the_rank_correlation_of_an_order(known: list[ScheduleGroup]) -> None:
    def correlation(sign: float) -> float:
        return judged(known, lambda group: sign * group.costs)["rank correlation"]

    assert correlation(1.0) == pytest.approx(1.0)
    assert correlation(-1.0) == pytest.approx(-1.0)
    assert correlation(0.0) == 0.0
    tied = judged(known, lambda group: (group.costs > np.median(group.costs)).astype(float))["rank correlation"]
    assert 0.7 < tied < 1.0
