"""The evidence of attempts about their policies."""

from cudal2_agent.contract.records.trajectory import Attempt
from cudal2_agent.contract.reward.reward import FLOOR
from cudal2_agent.policies.portfolio.evidence import MIN_GAIN, costs, first_tries, improved


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
