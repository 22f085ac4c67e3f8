"""Evaluations survive the store, and none can be built with the appearance of a result that it lacks."""

import typing

import pytest
from pydantic import TypeAdapter, ValidationError

from cudal2_agent.contract.records.evaluation import (
    BASELINES,
    FAULT_CHARS,
    FULL_SIZE,
    CompileFailed,
    Crashed,
    Evaluation,
    Measured,
    Rejected,
    TestResult,
    TimedOut,
    Timing,
    Wrong,
)
from tests.contract.records import EVALUATIONS, FAULTS, INSPECTION, PASSED, UNMEASURED, measured

ADAPTER: TypeAdapter[Evaluation] = TypeAdapter(Evaluation)


def test_every_kind_of_evaluation_is_covered() -> None:
    union = typing.get_args(typing.get_args(Evaluation)[0])
    assert {type(evaluation) for evaluation in EVALUATIONS} == set(union)
    assert len({kind.model_fields["status"].default for kind in union}) == len(union)


@pytest.mark.parametrize("evaluation", EVALUATIONS, ids=lambda evaluation: evaluation.status)
def test_json_round_trip(evaluation: Evaluation) -> None:
    text = evaluation.model_dump_json()
    again = ADAPTER.validate_json(text)
    assert type(again) is type(evaluation)
    assert again == evaluation
    assert again.model_dump_json() == text


@pytest.mark.parametrize("evaluation", EVALUATIONS, ids=lambda evaluation: evaluation.status)
def test_unknown_fields_and_statuses_are_refused(evaluation: Evaluation) -> None:
    data = evaluation.model_dump(mode="json")
    with pytest.raises(ValidationError):
        ADAPTER.validate_python(data | {"speedup": 2.0})
    with pytest.raises(ValidationError):
        ADAPTER.validate_python(data | {"status": "fast"})


@pytest.mark.parametrize("evaluation", EVALUATIONS, ids=lambda evaluation: evaluation.status)
def test_records_are_frozen(evaluation: Evaluation) -> None:
    with pytest.raises(ValidationError):
        evaluation.status = "measured"  # type: ignore[misc,assignment]


UNSTEADY = (10.0, 14.0, 10.0, 15.0, 10.0, 16.0)


def test_how_unsteady_times_were_is_a_range_of_the_middle_half() -> None:
    assert Timing(name="x", samples_us=(10.0, 10.1, 9.9, 10.0, 10.2, 10.0, 10.1, 30.0)).unsteadiness < 0.02
    assert Timing(name="x", samples_us=(9.0, 10.0, 11.0, 12.0, 13.0)).unsteadiness == pytest.approx(3 / 11)
    assert Timing(name="x", samples_us=(1.0, 9.0, 30.0)).unsteadiness == 0


@pytest.mark.parametrize("side", ["timing", "baseline"])
def test_unsteady_times_of_either_side_are_said(side: str) -> None:
    steady, unsteady = (Timing(name=side, samples_us=samples) for samples in ((10.0,) * 6, UNSTEADY))
    own, other = (unsteady, steady) if side == "timing" else (steady, unsteady)
    found = measured().model_copy(update={"timing": own, "baselines": (other,), "notes": ("a note",)})
    assert found.remarks[0] == "a note"
    assert found.remarks[1].startswith(f"times were unsteady: the middle half of {side}'s 6 samples spreads over 44 %")
    assert found.model_copy(update={"timing": steady, "baselines": ()}).remarks == ("a note",)


@pytest.mark.parametrize("samples", [(), (0.0,), (-1.0,), (float("nan"),), (float("inf"),), (8.0, 0.0)])
def test_a_timing_without_a_positive_time_cannot_be_built(samples: tuple[float, ...]) -> None:
    with pytest.raises(ValidationError):
        Timing(name="candidate", samples_us=samples)


@pytest.mark.parametrize("field", ["timing", "environment", "inspection", "tests", "baselines"])
def test_a_measurement_lacks_nothing(field: str) -> None:
    data = measured().model_dump()
    del data[field]
    with pytest.raises(ValidationError):
        Measured.model_validate(data)


def test_the_baselines_have_different_names() -> None:
    assert len(set(BASELINES)) == 4


def test_infinite_errors_survive_json() -> None:
    wrong = next(evaluation for evaluation in EVALUATIONS if evaluation.status == "wrong")
    again = ADAPTER.validate_json(wrong.model_dump_json())
    assert again.status == "wrong"
    assert again.test.worst == float("inf")
    assert again.inspection == INSPECTION
    assert again.tests[0] == PASSED


@pytest.mark.parametrize("evaluation", EVALUATIONS, ids=lambda evaluation: evaluation.status)
def test_what_an_evaluation_says_of_itself_is_not_stored(evaluation: Evaluation) -> None:
    said = {"passed", "executed", "failed", "fault", "headline"}
    assert not said & evaluation.model_dump().keys()
    assert all(hasattr(evaluation, name) for name in said)


def test_a_fault_is_neither_passed_nor_without_words() -> None:
    for evaluation in FAULTS:
        assert evaluation.failed
        assert not evaluation.passed
        assert evaluation.executed == isinstance(evaluation, Wrong)
        assert evaluation.headline == f"{evaluation.status.replace('_', ' ')}: {evaluation.fault}"


def test_what_was_built_passes_only_where_it_was_executed() -> None:
    for by in ("nothing", "emulator", "gpu"):
        built = UNMEASURED.model_copy(update={"verified_by": by})
        assert built.passed == built.executed == (by != "nothing")
        assert not built.failed
        assert built.fault == ""
    assert measured().passed
    assert measured().executed
    assert not measured().failed


@pytest.mark.parametrize(
    ("evaluation", "headline"),
    [
        (Rejected(rule="plan-smem-limit", message="too\n  much"), "rejected: plan-smem-limit: too much"),
        (CompileFailed(message="no ';'", log="long"), "compile failed: no ';'"),
        (CompileFailed(message="", log="long"), "compile failed"),
        (Crashed(stage="verify", message="illegal address"), "crashed: while verify: illegal address"),
        (TimedOut(stage="time", limit_s=30.0), "timed out: time took more than 30 s"),
        (
            TimedOut(stage="verify", limit_s=180.0, message="the last 179 s of them in one run"),
            "timed out: verify took more than 180 s, the last 179 s of them in one run",
        ),
        (
            Wrong(test=TestResult(tier="1", name="exact", passed=False, message="off"), tests=(), inspection=INSPECTION),
            "wrong: 1/exact: off",
        ),
        (UNMEASURED, "verified by the emulator"),
        (
            UNMEASURED.model_copy(update={"tests": (TestResult(tier="emulator", name=FULL_SIZE, passed=True),)}),
            "verified by the emulator in part",
        ),
        (UNMEASURED.model_copy(update={"verified_by": "gpu"}), "verified by a GPU"),
        (UNMEASURED.model_copy(update={"verified_by": "nothing"}), "not executed"),
        (UNMEASURED.model_copy(update={"verified_by": "nothing", "reason": "no core"}), "verified by nothing: no core"),
        (measured(), "measured"),
    ],
    ids=lambda value: value if isinstance(value, str) else "",
)
def test_the_headline_says_what_became_of_a_candidate(evaluation: Evaluation, headline: str) -> None:
    assert evaluation.headline == headline


def test_a_fault_is_one_short_line() -> None:
    fault = CompileFailed(message="error\n" * 100, log="").fault
    assert "\n" not in fault
    assert len(fault) == FAULT_CHARS
    assert fault.endswith("…")
