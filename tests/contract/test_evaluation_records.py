"""Outcomes survive the store, and none can be built that looks like a result it lacks."""

import typing

import pytest
from pydantic import TypeAdapter, ValidationError

from contract.evaluation import BASELINES, Evaluation, Measured, Timing
from tests.contract.records import EVALUATIONS, INSPECTION, PASSED, measured

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
