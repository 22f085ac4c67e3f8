"""What the best candidate was chosen by, in words and as JSON; evaluations with their times in one line."""

import pytest

from cudal2_agent.agent.cli.render.run_answer import best_lines, lead_json
from cudal2_agent.agent.observe.ranking import leading_step
from cudal2_agent.agent.report.lead import Lead, lead_of
from cudal2_agent.agent.report.one_line import result_of
from cudal2_agent.contract.records.evaluation import FULL_SIZE, NOT_COVERED, NOT_FITTED, Crashed, Evaluation, TestResult
from cudal2_agent.contract.records.trajectory import Step
from tests.doubles import CHIP, TASK, measured, step, unmeasured


def steps_of(*evaluations: Evaluation) -> list[Step]:
    return [step(n, n, evaluation=evaluation) for n, evaluation in enumerate(evaluations)]


def lead(*evaluations: Evaluation) -> Lead:
    found = lead_of(steps_of(*evaluations), TASK, CHIP)
    assert found is not None
    return found


def test_a_prediction_is_compared_with_those_of_right_kernels_only() -> None:
    found = lead(unmeasured(5.0, "emulator"), unmeasured(3.0), unmeasured(7.0, "emulator"))
    assert (found.ranked_by, found.tied) == ("predicted", ())
    assert found.sentence == "By prediction it is the fastest of 2 kernels that were found right."


def test_what_ties_is_named() -> None:
    found = lead(*(unmeasured(us, "emulator") for us in (5.0, 7.0, 4.9)))
    assert found.sentence == (
        "By prediction it is the fastest of 3 kernels that were found right. "
        "Tied within 3 %: mma_sync 64x64x32 number=0 (5.00 us); only timing them can tell."
    )
    assert lead_json(found)["tied"] == [steps_of(*(measured(1.0),) * 3)[0].candidate.id]


@pytest.mark.parametrize(
    ("evaluations", "ranked_by", "said"),
    [
        ((measured(5.0), unmeasured(1.1, "emulator")), "measured", ""),
        ((unmeasured(5.0, "emulator"),), "predicted", ""),
        ((unmeasured(1.0, "emulator"),), "nothing", ""),
        ((unmeasured(1.0, "emulator"),) * 2, "nothing", "the first of 2 kernels that were found right; they are not ranked"),
        ((unmeasured(5.0), unmeasured(6.0)), "predicted", "fastest of 2 kernels that were built"),
    ],
)
def test_the_measure_is_named(evaluations: tuple[Evaluation, ...], ranked_by: str, said: str) -> None:
    found = lead(*evaluations)
    assert lead_json(found)["ranked_by"] == ranked_by
    assert said in found.sentence
    assert bool(said) == bool(found.sentence)


def test_the_answer_says_so() -> None:
    steps = steps_of(unmeasured(5.0, "emulator"), unmeasured(4.0, "emulator"))
    lines = best_lines(leading_step(steps, TASK, CHIP), lead_of(steps, TASK, CHIP))
    assert lines[1:] == [
        "time: 4.00 us, predicted",
        "The emulator executed the kernel and found it right; its time is predicted, not measured.",
        "By prediction it is the fastest of 2 kernels that were found right.",
    ]


def test_a_chip_whose_rates_nobody_measured_is_named_so() -> None:
    one = unmeasured(5.0, "emulator")
    unknown = one.prediction.model_copy(update={"model": f"analytic prior/latency on L40S, {NOT_FITTED}"})
    (said,) = best_lines(steps_of(one.model_copy(update={"prediction": unknown}))[0], None)[2:]
    assert said == (
        "The emulator executed the kernel and found it right; "
        "its time is predicted, not measured, from rates that nobody fitted to this chip."
    )


def test_without_a_kernel_nothing_leads() -> None:
    assert lead_of([], TASK, CHIP) is None
    assert lead_json(None) == {"ranked_by": None, "tied": []}


def test_a_fault_stands_in_the_place_of_a_time() -> None:
    assert result_of(Crashed(stage="verify", message="illegal address")) == "crashed: while verify: illegal address"
    assert result_of(unmeasured(3.0)) == "3.00 us predicted, not executed"


def test_a_proof_in_part_and_none_at_all_are_not_called_a_proof() -> None:
    whole = unmeasured(3.0, "emulator")
    assert result_of(whole) == "3.00 us predicted, verified by the emulator"
    for name in (FULL_SIZE, NOT_COVERED):
        tests = (*whole.tests, TestResult(tier="emulator", name=name, passed=True))
        assert result_of(whole.model_copy(update={"tests": tests})) == "3.00 us predicted, verified by the emulator in part"
    unknown = unmeasured(3.0).model_copy(update={"reason": "no such opcode"})
    assert result_of(unknown) == "3.00 us predicted, verified by nothing: no such opcode"
    assert result_of(measured(5.0)) == "5.00 us, 2.000x cuBLASLt-AutoTuning"
