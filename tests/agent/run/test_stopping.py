"""When a search ends."""

from agent.observe.ranking import rank
from agent.run.stopping import Budget, no_better_prediction
from contract.evaluation import Rejected
from contract.trajectory import Step
from tests.doubles import CHIP, TASK, step, unmeasured


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
