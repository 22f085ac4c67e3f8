"""Gains with intervals, and their sums."""

import random
import statistics

import pytest

from cudal2_agent.agent.library.advise.gains import NO_GAIN, GainInterval, KernelGain, time_spared, total_gain
from cudal2_agent.contract.reward.speedup import Speedup


def gain(value: float, half: float) -> GainInterval:
    return GainInterval(value=value, low=value - half, high=value + half)


def test_a_speedup_spares_a_share_of_the_time() -> None:
    spared = time_spared(10.0, Speedup(baseline="x", ratio=1.25, low=1.0, high=2.0))
    assert (spared.value, spared.low, spared.high) == pytest.approx((2.0, 0.0, 5.0))


def test_errors_of_different_kernels_add_up_in_squares_and_of_the_same_one_linearly() -> None:
    apart = total_gain([KernelGain("a", gain(5, 3)), KernelGain("b", gain(7, 4))])
    same = total_gain([KernelGain("a", gain(5, 3)), KernelGain("a", gain(7, 4))])
    assert (apart.value, apart.low, apart.high) == pytest.approx((12, 7, 17))
    assert (same.value, same.low, same.high) == pytest.approx((12, 5, 19))


def test_the_two_sides_are_apart() -> None:
    lopsided = GainInterval(value=5, low=5, high=8)
    total = total_gain([KernelGain("a", lopsided), KernelGain("b", GainInterval(value=1, low=-3, high=5))])
    assert (total.low, total.high) == pytest.approx((2, 11))


def test_nothing_spares_nothing() -> None:
    assert total_gain([]) == NO_GAIN


def test_the_interval_of_a_sum_holds_95_per_cent_of_drawn_sums() -> None:
    """Kernels with normal errors of different sizes; the first of them is called in two places."""
    rng = random.Random(0)
    deviations = {"a": 1.0, "b": 0.5, "c": 2.0}
    calls = [("a", 3.0), ("a", 2.0), ("b", 8.0), ("c", 1.0)]
    total = total_gain(KernelGain(name, gain(10 * n, 1.96 * n * deviations[name])) for name, n in calls)
    sums = []
    for _ in range(4000):
        errors = {name: rng.gauss(0, deviation) for name, deviation in deviations.items()}
        sums.append(sum(n * (10 + errors[name]) for name, n in calls))
    assert statistics.mean(total.low <= one <= total.high for one in sums) == pytest.approx(0.95, abs=0.01)
