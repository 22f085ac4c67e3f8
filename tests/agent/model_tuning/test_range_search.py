"""How far down a kernel is faster: what is measured, and what is concluded from it."""

from collections.abc import Callable
from itertools import pairwise

import pytest

from cudal2_agent.agent.model_tuning.range_search import MOST_POINTS, faster_down_to
from cudal2_agent.contract.records.library import RangePoint
from cudal2_agent.contract.reward.speedup import Speedup

Times = Callable[[int], float]


def search(ours: Times, torch: Times, largest: int = 511, floor: int = 65) -> tuple[list[int], list[int]]:
    """The M that were found faster, and those that were measured."""
    asked: list[int] = []

    def measure(m: int) -> RangePoint:
        asked.append(m)
        ratio = torch(m) / ours(m)
        interval = Speedup(baseline="torch", ratio=ratio, low=ratio - 0.01, high=ratio + 0.01)
        return RangePoint(m=m, time_us=ours(m), torch_us=torch(m), speedup=interval)

    return [point.m for point in faster_down_to(largest, floor, measure)], asked


def test_times_that_do_not_depend_on_m_need_two_points() -> None:
    assert search(lambda _: 5.0, lambda _: 6.0) == ([511, 65], [511, 65])


def test_a_kernel_that_is_slower_at_the_top_is_measured_once() -> None:
    assert search(lambda _: 5.0, lambda _: 5.0) == ([], [511])


def test_one_m_is_a_range() -> None:
    assert search(lambda _: 5.0, lambda _: 6.0, largest=7, floor=7) == ([7], [7])


def test_a_range_ends_above_the_m_at_which_torch_is_faster() -> None:
    found, asked = search(lambda _: 5.0, lambda m: 6.0 if m >= 300 else 4.0)
    assert found[0] == 511
    assert 300 <= found[-1] <= 300 * (1 + 1 / 8)
    assert len(asked) <= MOST_POINTS


def test_proportional_times_are_followed_in_steps_that_their_ratio_covers() -> None:
    """At 0.8 times torch's time, torch at M takes as long as the kernel at 1.25 M."""
    found, asked = search(lambda m: 0.8 * m, lambda m: 1.0 * m)
    assert all(upper <= 1.25 * lower for upper, lower in pairwise(found))
    assert found[-1] <= 75
    assert len(asked) <= MOST_POINTS


@pytest.mark.parametrize(
    ("slow", "largest", "floor"), [(range(120, 140), 511, 65), (range(2, 4), 63, 1), (range(65, 66), 511, 65)]
)
def test_what_was_measured_slower_is_never_in_the_range(slow: range, largest: int, floor: int) -> None:
    found, asked = search(lambda _: 5.0, lambda m: 4.0 if m in slow else 6.0, largest, floor)
    assert not [m for m in asked if m in slow and m >= found[-1]]


@pytest.mark.parametrize("margin", [1.02, 1.1, 1.3, 2.0])
@pytest.mark.parametrize("edge", [1, 33, 100, 400])
def test_times_that_never_fall_with_m_are_never_faster_within_a_range_by_mistake(margin: float, edge: int) -> None:
    """Steps at multiples of 64, as tiles have; the kernel loses below an edge."""

    def torch(m: int) -> float:
        return float(-(-m // 64))

    def ours(m: int) -> float:
        return torch(m) / margin if m >= edge else torch(edge)

    found, _ = search(ours, torch, largest=500, floor=1)
    assert all(ours(m) <= torch(m) for m in range(found[-1], 501))
