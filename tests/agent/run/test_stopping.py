"""When a search ends, and the clock of a run: what was spent before, and what is not the agent's own time."""

import pytest

from cudal2_agent.agent.observe.ranking import rank
from cudal2_agent.agent.run.clock import RunClock
from cudal2_agent.agent.run.stopping import Budget, SearchEnd, no_better_prediction
from cudal2_agent.contract.records.evaluation import Rejected
from cudal2_agent.contract.records.trajectory import Step
from cudal2_agent.contract.reward.roofline import roofline_us
from tests.doubles import CHIP, TASK, measured, step, unmeasured


def test_a_part_of_the_time_is_kept_for_the_final_measurements() -> None:
    assert Budget(candidates=1, minutes=1.0).search_s(True) == 45.0
    assert Budget(candidates=1, minutes=20.0).search_s(True) == 1140.0
    assert Budget(candidates=1, minutes=1.0).search_s(False) == 60.0


def test_no_better_prediction_compares_rounds() -> None:
    def ranked(*steps: Step) -> bool:
        return no_better_prediction([rank(one, TASK, CHIP) for one in steps], 2)

    first = step(0, evaluation=unmeasured(9.0))
    assert not ranked(first)
    assert ranked(first, step(1, number=1, round=2, evaluation=unmeasured(9.0)))
    assert not ranked(first, step(1, number=1, round=2, evaluation=unmeasured(8.7)))
    assert ranked(first, step(1, number=1, round=2, evaluation=unmeasured(8.8))), "it ties"
    assert not ranked(first, step(1, number=1, round=2, evaluation=Rejected(rule="x", message="y")))


def reason(*steps: Step, reads_code: bool = False, can_measure: bool = False) -> str:
    ending = SearchEnd(TASK, CHIP, Budget(candidates=9, minutes=9.0), can_measure=can_measure, reads_code=reads_code)
    return ending.reason([rank(one, TASK, CHIP) for one in steps], steps[-1].round, 0, 1.0)


def test_a_model_goes_on_after_a_round_without_a_better_prediction() -> None:
    """A search over schedules has then seen the best of its predictions; a model has not."""
    steps = (step(0, evaluation=unmeasured(9.0)), step(1, number=2, round=2, evaluation=unmeasured(12.0)))
    assert reason(*steps) == "another round brought no better prediction"
    assert reason(*steps, reads_code=True) == ""


def test_only_a_measured_time_near_the_roofline_ends_a_search() -> None:
    near_us = 1.001 * roofline_us(TASK, CHIP)
    assert reason(step(0, evaluation=unmeasured(near_us, "emulator"))) == ""
    assert reason(step(0, evaluation=measured(near_us)), can_measure=True) == "the roofline is near"
    budget = Budget(candidates=9, minutes=9.0)
    to_the_end = SearchEnd(TASK, CHIP, budget, can_measure=True, reads_code=False, stops_near_roofline=False)
    assert to_the_end.reason([rank(step(0, evaluation=measured(near_us)), TASK, CHIP)], 1, 0, 1.0) == ""


class Ticking:
    """A clock that a test moves."""

    now_s = 100.0

    def __call__(self) -> float:
        return self.now_s


def test_the_clock_goes_on_from_what_was_spent() -> None:
    ticking = Ticking()
    clock = RunClock(30.0, ticking)
    ticking.now_s += 5
    assert clock.spent_s() == pytest.approx(35.0)


def test_a_lap_leaves_out_what_was_outside() -> None:
    ticking = Ticking()
    clock = RunClock(0.0, ticking)
    ticking.now_s += 2
    with clock.outside():
        ticking.now_s += 10
    ticking.now_s += 1
    assert clock.lap_s() == pytest.approx(3.0)
    ticking.now_s += 4
    assert clock.lap_s() == pytest.approx(4.0)


def test_time_outside_counts_even_when_it_ends_in_an_error() -> None:
    ticking = Ticking()
    clock = RunClock(0.0, ticking)

    def lose_the_worker() -> None:
        with clock.outside():
            ticking.now_s += 10
            raise RuntimeError

    with pytest.raises(RuntimeError):
        lose_the_worker()
    assert clock.lap_s() == 0.0
