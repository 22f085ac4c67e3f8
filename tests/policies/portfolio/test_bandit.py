"""The split of slots follows reward per cost, discounts old rounds, and assigns every slot."""

import random
from statistics import mean

import pytest
from hypothesis import given
from hypothesis import strategies as st

from cudal2_agent.contract.records.trajectory import Attempt
from cudal2_agent.contract.reward.reward import FLOOR
from cudal2_agent.policies.portfolio.bandit import (
    HALF_LIFE,
    MIN_GAIN,
    Posterior,
    Pull,
    costs,
    first_tries,
    improved,
    posteriors,
    split,
)

ARMS = ("one", "two")


def pulls(arm: str, won: int, lost: int, cost: float = 1.0) -> list[Pull]:
    return [Pull(arm, n < won, cost) for n in range(won + lost)]


def share(history: list[Pull], arm: str = "two", missing: dict[str, int] | None = None) -> float:
    """An arm's share of 2000 slots."""
    return split(posteriors(ARMS, history, missing or {}), 2000, 0, random.Random(0))[arm] / 2000


def test_without_evidence_arms_are_alike() -> None:
    assert share([]) == pytest.approx(0.5, abs=0.05)


def test_the_arm_that_succeeds_is_given_more() -> None:
    assert share(pulls("one", 1, 15) + pulls("two", 8, 8)) > 0.85


def test_at_equal_success_the_cheaper_arm_is_given_more() -> None:
    assert share(pulls("one", 3, 13, cost=20.0) + pulls("two", 3, 13, cost=1.0)) > 0.9


def test_a_dear_arm_is_worth_it_where_it_succeeds_more_than_it_costs_more() -> None:
    assert share(pulls("one", 0, 30, cost=1.0) + pulls("two", 24, 6, cost=3.0)) > 0.7


def test_the_unit_of_cost_does_not_matter() -> None:
    small = pulls("one", 3, 10, cost=2e-6) + pulls("two", 5, 9, cost=9e-6)
    large = pulls("one", 3, 10, cost=2e6) + pulls("two", 5, 9, cost=9e6)
    assert share(small) == share(large)


def test_one_slow_candidate_does_not_make_all_arms_look_alike() -> None:
    history = [*pulls("one", 2, 18, cost=10.0), Pull("one", False, 1e6), *pulls("two", 2, 18, cost=1.0)]
    assert share(history) > 0.75


def test_evidence_fades() -> None:
    then = pulls("two", 15, 0)
    assert (
        share(then + pulls("one", 0, 5)) > share(then + [Pull("other", None, 1.0)] * 8 * HALF_LIFE + pulls("one", 0, 5)) + 0.1
    )
    old = posteriors(ARMS, [Pull("one", True, 1.0), *[Pull("two", None, 1.0)] * HALF_LIFE], {})["one"]
    fresh = posteriors(ARMS, [Pull("one", True, 1.0)], {})["one"]
    assert old.success[0] - 1.0 == pytest.approx((fresh.success[0] - 1.0) / 2)


def test_what_cannot_be_said_is_no_evidence_of_success_but_costs() -> None:
    said_nothing = posteriors(ARMS, [Pull("one", None, 1.0)] * 9, {})["one"]
    assert said_nothing.success == posteriors(ARMS, [], {})["one"].success
    assert said_nothing.cost != posteriors(ARMS, [], {})["one"].cost


def test_an_arm_that_writes_nothing_is_given_less() -> None:
    history = pulls("one", 2, 14)
    assert share(history, missing={"two": 4}) < share(history) - 0.05


def test_every_arm_has_its_least_where_there_are_enough_slots() -> None:
    sides = posteriors(ARMS, pulls("one", 30, 0) + pulls("two", 0, 30), {})
    assert all(split(sides, 8, 1, random.Random(seed))["two"] >= 1 for seed in range(50))
    assert split(sides, 2, 1, random.Random(0)) == {"one": 1, "two": 1}
    assert sum(split(sides, 1, 1, random.Random(0)).values()) == 1


@given(st.integers(0, 40), st.integers(0, 3), st.integers(1, 5), st.integers())
def test_every_slot_is_given_away_once(count: int, least: int, arms: int, seed: int) -> None:
    posterior = {str(arm): Posterior(success=(1.0, 9.0), cost=(1.0, 1.0)) for arm in range(arms)}
    slots = split(posterior, count, least, random.Random(seed))
    assert list(slots) == list(posterior)
    assert sum(slots.values()) == count
    assert slots == split(posterior, count, least, random.Random(seed))


@pytest.mark.parametrize(("chances", "paying"), [((0.05, 0.3), "two"), ((0.15, 0.0), "one")])
def test_in_a_whole_run_the_paying_arm_gets_most(chances: tuple[float, float], paying: str) -> None:
    """96 candidates in rounds of eight at equal cost, over 20 seeds."""
    parts = []
    for seed in range(20):
        rng, history = random.Random(seed), pulls("one", 1, 7)
        while len(history) < 96:
            for arm, count in split(posteriors(ARMS, history, {}), 8, 0, rng).items():
                history += [Pull(arm, rng.random() < chances[ARMS.index(arm)], 1.0) for _ in range(count)]
        parts.append(mean(pull.arm == paying for pull in history))
    assert mean(parts) > 0.65


# The evidence of attempts about their policies.
def tried(number: int, time_us: float | None = None, **changes: object) -> Attempt:
    """A measured attempt, or a failed one without a time."""
    status = "measured" if time_us is not None else "compile_failed"
    fields = {"candidate_id": str(number), "policy": "p", "schedule": None, "status": status, "time_us": time_us}
    return Attempt.model_validate({**fields, **changes})


def modelled(number: int, predicted_us: float, *, free: bool = False) -> Attempt:
    schedule = None if free else {"family": "f", "number": number}
    return tried(number, status="unmeasured", predicted_us=predicted_us, schedule=schedule)


def test_better_than_all_before_by_enough_is_an_improvement() -> None:
    times_us = (10.0, 12.0, 8.0, 8.0 * (1 - MIN_GAIN / 2), 9.0, 7.0)
    assert improved([tried(n, us) for n, us in enumerate(times_us)]) == [None, False, True, False, False, True]


def test_the_first_that_passes_sets_the_mark_whatever_failed_before() -> None:
    assert improved([tried(0), tried(1, 5.0), tried(2), tried(3, 4.0)]) == [False, None, False, True]
    assert improved([]) == []


def test_a_time_too_good_to_be_true_is_a_failure_and_no_mark() -> None:
    tries = [tried(0, 5.0, reward=0.1), tried(1, 0.01, reward=FLOOR), tried(2, 4.0, reward=0.2)]
    assert improved(tries) == [None, False, True]


def test_a_time_without_its_second_witness_is_no_success_and_no_mark() -> None:
    tries = [tried(0, 10.0), tried(1, 5.0, unproved=True), tried(2, 9.0), tried(3, 12.0, unproved=True)]
    assert improved(tries) == [None, None, True, False]
    assert improved([tried(0, 5.0, unproved=True), tried(1, 9.0)]) == [None, None]


def test_without_execution_schedules_are_compared_and_free_code_says_nothing() -> None:
    tries = [modelled(0, 9.0), modelled(1, 2.0, free=True), modelled(2, 8.0), modelled(3, 8.5), tried(4)]
    assert improved(tries) == [None, None, True, False, False]


def test_without_execution_free_code_counts_where_a_model_predicts_it_and_a_tie_is_no_success() -> None:
    tries = [modelled(0, 9.0), modelled(1, 8.8, free=True), modelled(2, 8.5, free=True)]
    known = [attempt.model_copy(update={"is_floor": False}) for attempt in tries]
    assert improved(known) == [None, False, True]


def test_predictions_say_nothing_once_anything_was_measured() -> None:
    assert improved([tried(0, 9.0), modelled(1, 5.0), tried(2, 8.0)]) == [None, None, True]
    assert improved([modelled(0, 5.0), tried(1, 9.0)]) == [None, None]


def test_measuring_again_is_no_try() -> None:
    tries = first_tries([tried(0, 5.0), tried(1, 6.0), tried(0, 4.0)])
    assert [(one.candidate_id, one.time_us) for one in tries] == [("0", 5.0), ("1", 6.0)]


def test_the_scarcer_budget_sets_the_cost() -> None:
    quick, slow, unknown = (tried(n, 5.0, seconds=s) for n, s in enumerate((0.5, 20.0, None)))
    assert costs([quick, slow, unknown], candidates_left=10, seconds_left=1000.0) == [0.1, 0.1, 0.1]
    assert costs([quick, slow, unknown], candidates_left=1000, seconds_left=100.0) == [0.005, 0.2, 0.001]
    assert costs([quick, slow], candidates_left=4, seconds_left=None) == [0.25, 0.25]


def test_a_spent_budget_divides_by_nothing() -> None:
    assert costs([tried(0, 5.0, seconds=2.0)], candidates_left=0, seconds_left=-3.0) == [2.0]
