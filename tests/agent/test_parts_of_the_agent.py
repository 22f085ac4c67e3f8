"""The agent's pure parts: the clock, the query, the stopping rules, the labels."""

import pytest

from agent.clock import RunClock
from agent.ranking import rank
from agent.stopping import Budget, no_better_prediction
from agent.summary import MESSAGE_CHARS, label_of, message_of, result_of
from contract.candidate import Origin
from contract.evaluation import FULL_SIZE, NOT_COVERED, CompileFailed, Crashed, Rejected, TestResult, TimedOut
from contract.trajectory import Step
from tests.doubles import CHIP, TASK, candidate, measured, step, unmeasured


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
    assert not ranked(first, step(1, number=1, round=2, evaluation=unmeasured(8.9)))
    assert not ranked(first, step(1, number=1, round=2, evaluation=Rejected(rule="x", message="y")))


def test_a_label_shows_the_axes_in_use() -> None:
    schedule = {"family": "f", "block_m": 64, "block_n": 32, "block_k": 16, "stages": 4, "splits": 1, "tma": True, "pdl": False}
    one = candidate(0).model_copy(update={"origin": Origin.model_validate({"policy": "schedule", "schedule": schedule})})
    assert label_of(one) == "f 64x32x16 stages=4 tma"
    bare = candidate(0).model_copy(update={"origin": Origin(policy="file")})
    assert label_of(bare) == f"file {bare.id[:8]}"


def test_messages_are_one_short_line() -> None:
    line = message_of(CompileFailed(message="error\n" * 100, log=""))
    assert "\n" not in line
    assert len(line) == MESSAGE_CHARS
    assert result_of(Crashed(stage="verify", message="illegal address")) == "crashed: while verify: illegal address"
    assert result_of(unmeasured(3.0)) == "3.00 us predicted, not executed"
    stuck = TimedOut(stage="verify", limit_s=180.0, message="the last 179 s of them in one run")
    assert message_of(stuck) == "verify took more than 180 s, the last 179 s of them in one run"


def test_a_proof_in_part_and_none_at_all_are_not_called_a_proof() -> None:
    whole = unmeasured(3.0, "emulator")
    assert result_of(whole) == "3.00 us predicted, verified by the emulator"
    for name in (FULL_SIZE, NOT_COVERED):
        tests = (*whole.tests, TestResult(tier="emulator", name=name, passed=True))
        assert result_of(whole.model_copy(update={"tests": tests})) == "3.00 us predicted, verified by the emulator in part"
    unknown = unmeasured(3.0).model_copy(update={"reason": "no such opcode"})
    assert result_of(unknown) == "3.00 us predicted, verified by nothing: no such opcode"
    assert result_of(measured(5.0)) == "5.00 us, 2.000x cuBLASLt-AutoTuning"
