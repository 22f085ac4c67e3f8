"""The reward is monotone in the paired speedup, at its floor without verification, and absent without a measurement."""

import math
import statistics

import pytest
from hypothesis import given
from hypothesis import strategies as st

from cudal2_agent.contract.plan.chip import REFERENCE_CHIPS
from cudal2_agent.contract.records.candidate import Origin
from cudal2_agent.contract.records.evaluation import AUTOTUNED, CUBLAS, Evaluation, Timing, Witness
from cudal2_agent.contract.records.task import Arch, GemmTask
from cudal2_agent.contract.reward.reward import ALARM_RATIO, CLIP, FLOOR, beyond_roofline, reward
from cudal2_agent.contract.reward.roofline import roofline_us
from cudal2_agent.contract.reward.speedup import (
    SHORT_US,
    ScreenedTime,
    median_us,
    paired_speedup,
    speedup_over,
    steady_speedups,
    tied,
)
from tests.contract.records import FAULTS, UNMEASURED, measured

TASK = GemmTask(m=512, n=512, k=512)
CHIP = REFERENCE_CHIPS[Arch.SM_90A]
CUBED = GemmTask(m=4096, n=4096, k=4096)

SEARCHED = Origin(policy="schedule", schedule={"family": "mma_sync"})
WRITTEN = Origin(policy="chat")
AGREED, IN_PART = Witness(status="agreed"), Witness(status="in-part")
UNAVAILABLE = Witness(status="unavailable", reason="no core")

times = st.floats(0.5, 1e5)


def reward_at(candidate_us: float, baseline_us: float) -> float:
    earned = reward(measured((candidate_us,) * 3, **{AUTOTUNED: (baseline_us,) * 3}), TASK, CHIP, SEARCHED)
    assert earned is not None
    return earned


def test_equal_times_earn_nothing() -> None:
    assert reward_at(10.0, 10.0) == 0.0


def test_near_one_it_is_the_logarithm() -> None:
    assert reward_at(10.0, 10.5) == pytest.approx(math.log(1.05), rel=1e-2)


@given(times, times, times)
def test_a_faster_candidate_never_earns_less(first: float, second: float, baseline: float) -> None:
    fast, slow = sorted((first, second))
    assert reward_at(fast, baseline) >= reward_at(slow, baseline)


@given(times, times)
def test_it_stays_within_the_clip_and_above_the_floor(candidate: float, baseline: float) -> None:
    earned = reward_at(candidate, baseline)
    assert -CLIP <= earned <= CLIP
    assert earned > FLOOR
    assert earned == pytest.approx(-reward_at(baseline, candidate))


@pytest.mark.parametrize("evaluation", FAULTS, ids=lambda evaluation: evaluation.status)
def test_what_is_not_verified_earns_the_floor(evaluation: Evaluation) -> None:
    assert reward(evaluation, TASK, CHIP, SEARCHED) == FLOOR
    assert reward(evaluation, TASK, CHIP, WRITTEN) == FLOOR


def test_no_measurement_is_no_reward() -> None:
    assert reward(UNMEASURED, TASK, CHIP, SEARCHED) is None


def test_no_baseline_is_no_reward() -> None:
    assert reward(measured((8.0, 8.0, 8.0), **{CUBLAS: (9.0, 9.0, 9.0)}), TASK, CHIP, SEARCHED) is None


@pytest.mark.parametrize("origin", [WRITTEN, Origin(policy="schedule"), Origin(policy="schedule", schedule={})])
@pytest.mark.parametrize(
    ("witness", "earns"),
    [(None, False), (UNAVAILABLE, False), (AGREED, True), (IN_PART, True)],
    ids=lambda value: str(value)[:24],
)
def test_what_no_trusted_writer_made_earns_only_with_a_witness(origin: Origin, witness: Witness | None, earns: bool) -> None:
    fast = measured((8.0,) * 3, **{AUTOTUNED: (10.0,) * 3}).model_copy(update={"witness": witness})
    earned = reward(fast, TASK, CHIP, origin)
    assert (earned is not None) is earns
    assert reward(fast, TASK, CHIP, SEARCHED) == (earned if earns else reward_at(8.0, 10.0))


def test_no_witness_makes_an_alarm_a_reward() -> None:
    cheat = measured((0.001,) * 3, **{AUTOTUNED: (10.0,) * 3}).model_copy(update={"witness": AGREED})
    assert reward(cheat, TASK, CHIP, WRITTEN) == FLOOR
    assert reward(cheat.model_copy(update={"witness": None}), TASK, CHIP, WRITTEN) == FLOOR


def test_a_time_beyond_the_roofline_is_an_alarm() -> None:
    floor_us = roofline_us(CUBED, CHIP) - CHIP.launch_us
    honest, cheat = floor_us * ALARM_RATIO * 1.01, floor_us * ALARM_RATIO * 0.99
    assert not beyond_roofline(measured((honest,) * 3), CUBED, CHIP)
    assert beyond_roofline(measured((cheat,) * 3), CUBED, CHIP)
    assert reward(measured((cheat,) * 3, **{AUTOTUNED: (500.0,) * 3}), CUBED, CHIP, SEARCHED) == FLOOR
    assert (reward(measured((honest,) * 3, **{AUTOTUNED: (500.0,) * 3}), CUBED, CHIP, SEARCHED) or 0) > 0
    assert reward(measured((cheat,) * 3, **{CUBLAS: (500.0,) * 3}), CUBED, CHIP, SEARCHED) == FLOOR


@pytest.mark.parametrize("arch", list(Arch))
def test_the_roofline_is_the_slower_of_arithmetic_and_memory_plus_a_launch(arch: Arch) -> None:
    chip = REFERENCE_CHIPS[arch]
    assert chip.arch is arch
    cubed, thin = (GemmTask(m=8192, n=8192, k=k, arch=arch) for k in (8192, 8))
    assert roofline_us(GemmTask(m=1, n=1, k=1, arch=arch), chip) == pytest.approx(chip.launch_us, rel=1e-4)
    assert roofline_us(cubed, chip) == pytest.approx(2 * 8192**3 / (chip.tensor_tflops * 1e6) + chip.launch_us)
    assert roofline_us(thin, chip) == pytest.approx(thin.operand_bytes / (chip.dram_tbps * 1e6) + chip.launch_us)


def test_ratios_are_paired_round_by_round() -> None:
    candidate = Timing(name="candidate", samples_us=(1.0, 10.0, 100.0))
    baseline = Timing(name="baseline", samples_us=(2.0, 20.0, 200.0))
    speedup = paired_speedup(candidate, baseline)
    assert (speedup.low, speedup.ratio, speedup.high) == (2.0, 2.0, 2.0)
    assert speedup.baseline == "baseline"


def test_different_rounds_cannot_be_paired() -> None:
    with pytest.raises(ValueError, match="shorter"):
        paired_speedup(Timing(name="a", samples_us=(1.0, 2.0, 3.0)), Timing(name="b", samples_us=(1.0, 2.0)))


@given(st.lists(st.tuples(times, times), min_size=1, max_size=15), st.integers(0, 5))
def test_the_interval_holds_the_ratio_and_repeats(pairs: list[tuple[float, float]], seed: int) -> None:
    candidate = Timing(name="candidate", samples_us=tuple(pair[0] for pair in pairs))
    baseline = Timing(name="baseline", samples_us=tuple(pair[1] for pair in pairs))
    speedup = paired_speedup(candidate, baseline, seed)
    assert speedup.low <= speedup.ratio <= speedup.high
    assert speedup == paired_speedup(candidate, baseline, seed)


def test_one_round_has_an_interval_of_no_width() -> None:
    speedup = paired_speedup(Timing(name="a", samples_us=(4.0,)), Timing(name="b", samples_us=(6.0,)))
    assert (speedup.low, speedup.ratio, speedup.high) == (1.5, 1.5, 1.5)


def test_speedup_over_a_baseline_that_is_absent_is_absent() -> None:
    found = speedup_over(measured((8.0, 8.0)), AUTOTUNED)
    assert found is not None
    assert found.ratio == 1.25
    assert speedup_over(measured((8.0, 8.0)), "torch.matmul") is None


def test_median() -> None:
    assert median_us(Timing(name="a", samples_us=(9.0, 1.0, 5.0, 7.0))) == 6.0


@given(st.lists(st.tuples(times, st.floats(0.1, 10.0), st.booleans()), min_size=1, max_size=9))
def test_speedups_under_equal_conditions_are_the_paired_ones_unless_short_launches_overlap(
    told: list[tuple[float, float, bool]],
) -> None:
    screened = [ScreenedTime(*one) for one in told]
    usual_us = statistics.median(one.time_us * one.speedup for one in screened)
    for one, speedup in zip(screened, steady_speedups(screened), strict=True):
        own = one.overlaps and usual_us < SHORT_US
        assert speedup == (pytest.approx(usual_us / one.time_us) if own else one.speedup)


@pytest.mark.parametrize(("shorter", "speedups"), [(False, [2.0, 3.0, 3.125]), (True, [1.9, 3.8, 2.375])])
def test_a_product_is_short_below_the_bound_and_not_at_it(shorter: bool, speedups: list[float]) -> None:
    """The usual time of the baseline is exactly the bound, or one microsecond below it."""
    usual = 1.9 if shorter else 2.0
    screened = [ScreenedTime(10.0, usual, True), ScreenedTime(5.0, 3.0, True), ScreenedTime(8.0, 3.125, True)]
    assert statistics.median(one.time_us * one.speedup for one in screened) == SHORT_US - shorter
    assert steady_speedups(screened) == pytest.approx(speedups)


def test_of_nothing_measured_there_are_no_speedups() -> None:
    assert steady_speedups([]) == []


@pytest.mark.parametrize(("a_us", "b_us", "expected"), [(100.0, 102.9, True), (100.0, 103.1, False), (5.0, 5.0, True)])
def test_times_within_three_percent_are_tied_in_both_orders(a_us: float, b_us: float, expected: bool) -> None:
    assert tied(a_us, b_us) is expected
    assert tied(b_us, a_us) is expected
