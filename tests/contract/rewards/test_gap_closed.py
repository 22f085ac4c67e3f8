"""The share of the gap to the roofline: its scale, what withholds it, and attempts to game it."""

from collections.abc import Callable

import pytest
from hypothesis import given
from hypothesis import strategies as st

from cudal2_agent.contract.plan.chip import REFERENCE_CHIPS, Chip
from cudal2_agent.contract.records.candidate import Origin
from cudal2_agent.contract.records.evaluation import AUTOTUNED, CUBLAS, Evaluation, Measured, Witness
from cudal2_agent.contract.records.task import Arch, GemmTask
from cudal2_agent.contract.reward.reward import ALARM_RATIO, FLOOR, MIN_GAP, beyond_roofline, gap_closed, reward
from cudal2_agent.contract.reward.roofline import roofline_us
from cudal2_agent.contract.reward.speedup import median_us
from tests.contract.records import FAULTS, UNMEASURED, measured

Score = Callable[[Evaluation, GemmTask, Chip, Origin], float | None]

TASK = GemmTask(m=4096, n=4096, k=4096)
CHIP = REFERENCE_CHIPS[Arch.SM_90A]
ROOFLINE = roofline_us(TASK, CHIP)
BASELINE = 1.5 * ROOFLINE

SEARCHED = Origin(policy="schedule", schedule={"family": "mma_sync"})
WRITTEN = Origin(policy="chat")
UNAVAILABLE = Witness(status="unavailable", reason="no core")
CONFIRMING = [Witness(status="agreed"), Witness(status="in-part")]

plausible = st.floats(0.75 * ROOFLINE, 20 * ROOFLINE)
slower_baselines = st.floats(1.03 * ROOFLINE, 20 * ROOFLINE)


def timed(candidate: tuple[float, ...], baseline: tuple[float, ...], witness: Witness | None = None) -> Measured:
    return measured(candidate, **{AUTOTUNED: baseline}).model_copy(update={"witness": witness})


def share_at(candidate_us: float, baseline_us: float = BASELINE) -> float:
    share = gap_closed(timed((candidate_us,) * 3, (baseline_us,) * 3), TASK, CHIP, SEARCHED)
    assert share is not None
    return share


@pytest.mark.parametrize(("closed", "share"), [(0.0, 0.0), (0.25, 0.25), (0.5, 0.5), (1.0, 1.0), (-0.5, -0.5)])
def test_it_is_linear_between_the_baseline_and_the_roofline(closed: float, share: float) -> None:
    assert share_at(BASELINE - closed * (BASELINE - ROOFLINE)) == pytest.approx(share, abs=1e-12)


def test_no_time_under_the_roofline_earns_more_than_the_roofline() -> None:
    lowest = 1.01 * ALARM_RATIO * (ROOFLINE - CHIP.launch_us)
    assert share_at(ROOFLINE) == pytest.approx(1.0)
    assert share_at(lowest) == 1.0


@given(plausible, plausible, slower_baselines)
def test_a_faster_candidate_never_earns_less(first: float, second: float, baseline: float) -> None:
    fast, slow = sorted((first, second))
    assert share_at(fast, baseline) >= share_at(slow, baseline)


@given(st.lists(st.tuples(plausible, slower_baselines), min_size=1, max_size=9))
def test_it_is_bounded_above_the_floor_and_has_the_sign_of_the_reward(rounds: list[tuple[float, float]]) -> None:
    evaluation = timed(tuple(pair[0] for pair in rounds), tuple(pair[1] for pair in rounds))
    share, earned = (score(evaluation, TASK, CHIP, SEARCHED) for score in (gap_closed, reward))
    assert share is not None
    assert earned is not None
    assert FLOOR < -1 <= share <= 1
    assert share * earned >= 0
    assert (share == 0) <= (abs(earned) < 1e-12)


@pytest.mark.parametrize("score", [reward, gap_closed])
class TestRounds:
    """Attempts to gain by some of the rounds; the reward and the gap closed withstand the same ones."""

    @given(plausible, slower_baselines, st.floats(0.5, 1.0), st.floats(1.0, 2.0))
    def test_a_clock_that_drifts_through_the_rounds_changes_nothing(
        self, score: Score, candidate: float, baseline: float, early: float, late: float
    ) -> None:
        drift = (early, 1.0, late)
        steady = timed((candidate,) * 3, (baseline,) * 3)
        drifting = timed(tuple(candidate * factor for factor in drift), tuple(baseline * factor for factor in drift))
        assert score(drifting, TASK, CHIP, SEARCHED) == pytest.approx(score(steady, TASK, CHIP, SEARCHED), abs=1e-9)

    def test_rounds_are_compared_one_by_one(self, score: Score) -> None:
        """Its median is under that of the baseline, and it is slower in two rounds of three."""
        apart = timed((1.1 * BASELINE, 1.4 * BASELINE, 2.2 * BASELINE), (BASELINE, 1.5 * BASELINE, 2 * BASELINE))
        assert median_us(apart.timing) < median_us(apart.baselines[0])
        slower = timed((1.1 * BASELINE,) * 3, (BASELINE,) * 3)
        earned, expected = (score(each, TASK, CHIP, SEARCHED) or 0.0 for each in (apart, slower))
        assert earned < 0
        assert (earned == pytest.approx(expected)) is (score is reward), "the gap is that of the median baseline"

    def test_lucky_rounds_do_not_count(self, score: Score) -> None:
        """A candidate that is slower in most rounds, and far under the roofline in the others, earns as a slower one."""
        lucky = timed((0.001, 0.001, 1.6 * ROOFLINE, 1.6 * ROOFLINE, 1.6 * ROOFLINE), (BASELINE,) * 5)
        slow = timed((1.6 * ROOFLINE,) * 5, (BASELINE,) * 5)
        assert score(lucky, TASK, CHIP, SEARCHED) == pytest.approx(score(slow, TASK, CHIP, SEARCHED))

    @pytest.mark.parametrize("others", [1.3 * ROOFLINE, 2 * BASELINE])
    def test_lucky_rounds_of_an_even_number_are_an_alarm(self, score: Score, others: float) -> None:
        """The median of four is the mean of the middle two: half of the rounds lower the time, or raise the speedup."""
        half = timed((0.001, 0.001, others, others), (BASELINE,) * 4)
        assert beyond_roofline(half, TASK, CHIP)
        assert score(half, TASK, CHIP, SEARCHED) == FLOOR

    def test_a_baseline_that_was_slowed_in_a_minority_of_rounds_does_not_count(self, score: Score) -> None:
        slowed = (BASELINE, BASELINE, BASELINE, 50 * BASELINE, 50 * BASELINE)
        assert score(timed((BASELINE,) * 5, slowed), TASK, CHIP, SEARCHED) == 0.0

    def test_a_faster_baseline_of_another_name_does_not_count(self, score: Score) -> None:
        """Only cuBLASLt-AutoTuning counts, wherever it stands among the baselines."""
        both = measured((BASELINE,) * 3, **{CUBLAS: (9 * BASELINE,) * 3, AUTOTUNED: (BASELINE,) * 3})
        assert score(both, TASK, CHIP, SEARCHED) == 0.0


@pytest.mark.parametrize("gap", [-0.2, 0.0, 0.9 * MIN_GAP])
def test_a_baseline_at_the_roofline_or_under_it_leaves_no_gap_to_close(gap: float) -> None:
    """Otherwise noise of a percent would earn the whole scale, and a negative gap would reward the slower candidate."""
    baseline = ROOFLINE / (1 - gap)
    for candidate in (0.9 * baseline, baseline, 1.1 * baseline):
        assert gap_closed(timed((candidate,) * 3, (baseline,) * 3), TASK, CHIP, SEARCHED) is None
    assert share_at(1.01 * ROOFLINE, ROOFLINE / (1 - 1.1 * MIN_GAP)) > 0


@pytest.mark.parametrize("witness", [None, UNAVAILABLE, *CONFIRMING], ids=str)
@pytest.mark.parametrize("origin", [WRITTEN, SEARCHED], ids=lambda origin: origin.policy)
@pytest.mark.parametrize("baselines", [{AUTOTUNED: (BASELINE,) * 3}, {CUBLAS: (BASELINE,) * 3}], ids=str)
def test_a_time_beyond_the_roofline_is_the_alarm_of_the_reward(
    witness: Witness | None, origin: Origin, baselines: dict[str, tuple[float, ...]]
) -> None:
    cheat = measured((0.1,) * 3, **baselines).model_copy(update={"witness": witness})
    assert gap_closed(cheat, TASK, CHIP, origin) == reward(cheat, TASK, CHIP, origin) == FLOOR


def test_an_alarm_is_one_where_the_baseline_leaves_no_gap() -> None:
    assert gap_closed(timed((0.1,) * 3, (ROOFLINE,) * 3), TASK, CHIP, SEARCHED) == FLOOR


@pytest.mark.parametrize("witness", [None, UNAVAILABLE, *CONFIRMING], ids=str)
@pytest.mark.parametrize("origin", [WRITTEN, Origin(policy="schedule"), Origin(policy="schedule", schedule={}), SEARCHED])
def test_it_is_withheld_wherever_the_reward_is(witness: Witness | None, origin: Origin) -> None:
    evaluation = timed((ROOFLINE,) * 3, (BASELINE,) * 3, witness)
    earns = origin is SEARCHED or witness in CONFIRMING
    assert (reward(evaluation, TASK, CHIP, origin) is not None) is earns
    assert gap_closed(evaluation, TASK, CHIP, origin) == (pytest.approx(1.0) if earns else None)


@pytest.mark.parametrize("evaluation", FAULTS, ids=lambda evaluation: evaluation.status)
def test_what_is_not_verified_earns_the_floor(evaluation: Evaluation) -> None:
    assert gap_closed(evaluation, TASK, CHIP, SEARCHED) == gap_closed(evaluation, TASK, CHIP, WRITTEN) == FLOOR


def test_no_measurement_and_no_baseline_are_no_share() -> None:
    assert gap_closed(UNMEASURED, TASK, CHIP, SEARCHED) is None
    assert gap_closed(measured((ROOFLINE,) * 3, **{CUBLAS: (BASELINE,) * 3}), TASK, CHIP, SEARCHED) is None


def test_samples_of_other_rounds_cannot_be_paired() -> None:
    with pytest.raises(ValueError, match="shorter"):
        gap_closed(timed((ROOFLINE,) * 3, (BASELINE,) * 2), TASK, CHIP, SEARCHED)
