"""The split of slots follows reward per cost, discounts old rounds, and assigns every slot."""

import random
from statistics import mean

import pytest
from hypothesis import given
from hypothesis import strategies as st

from cudal2_agent.policies.portfolio.bandit import HALF_LIFE, Posterior, Pull, posteriors, split

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
