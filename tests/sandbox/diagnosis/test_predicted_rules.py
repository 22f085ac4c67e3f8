"""Findings from the terms of a prediction."""

from cudal2_agent.contract.records.evaluation import Prediction
from cudal2_agent.sandbox.diagnosis.predicted_rules import predicted_findings


def prediction(**terms: float) -> Prediction:
    named = {name.replace("_", " "): value for name, value in terms.items()}
    return Prediction(predicted_us=10, model="timing-model", floor_us=5, terms=named)


def test_the_largest_term_is_what_bounds_the_kernel() -> None:
    [finding] = predicted_findings(prediction(shared_memory=9, tensor_cores=5))
    assert finding.bottleneck == "smem-bound"
    assert finding.weight == 0.4
    assert "9.00 us of 10.00 us predicted" in finding.evidence


def test_where_no_term_is_large_latencies_are() -> None:
    [finding] = predicted_findings(prediction(shared_memory=2, tensor_cores=1))
    assert finding.bottleneck == "dependency-waits"
    assert finding.weight == 0.8


def test_a_prediction_without_terms_says_nothing() -> None:
    assert not list(predicted_findings(prediction()))
