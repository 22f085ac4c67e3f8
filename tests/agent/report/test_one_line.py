"""Evaluations with their times in one line."""

from cudal2_agent.agent.report.one_line import result_of
from cudal2_agent.contract.records.evaluation import FULL_SIZE, NOT_COVERED, Crashed, TestResult
from tests.doubles import measured, unmeasured


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
