"""The prior against measurements: every candidate of the runs in benchmarks/results/h200_optimize_2026-11-21.json."""

import json
from collections import defaultdict
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from cudal2_agent.contract.plan.chip import REFERENCE_CHIPS
from cudal2_agent.contract.records.task import Arch, GemmTask, parse_shape
from cudal2_agent.policies.schedule.families.registry import families
from cudal2_agent.policies.schedule.prior import predict_us

CHIP = REFERENCE_CHIPS[Arch.SM_90A]
FAMILIES = {family.name: family for family in families(Arch.SM_90A)}
MEASURED: dict[str, list[dict[str, Any]]] = defaultdict(list)
for line in (Path(__file__).parent / "h200_measured.jsonl").read_text().splitlines():
    row = json.loads(line)
    MEASURED[row["shape"]].append(row)


def log_times(shape: str) -> tuple[np.ndarray, np.ndarray]:
    m, n, k = parse_shape(shape)
    task = GemmTask(m=m, n=n, k=k)
    measured, predicted = [], []
    for row in MEASURED[shape]:
        family = FAMILIES[row["schedule"]["family"]]
        measured.append(row["time_us"])
        predicted.append(predict_us(family.work(family.parse(row["schedule"]), task, CHIP), task, CHIP))
    return np.log(measured), np.log(predicted)


# On 64x64x64 all candidates took about the same time; their order is not tested.
@pytest.mark.parametrize("shape", sorted(set(MEASURED) - {"64x64x64"}))
def test_within_a_shape_predictions_go_with_measurements(shape: str) -> None:
    measured, predicted = log_times(shape)
    assert len(measured) > 40
    assert np.corrcoef(measured, predicted)[0, 1] > 0.7


@pytest.mark.parametrize("shape", sorted(MEASURED))
def test_predictions_are_within_half_of_the_measurements(shape: str) -> None:
    measured, predicted = log_times(shape)
    assert abs(np.median(measured - predicted)) < np.log(1.5)


@pytest.mark.parametrize("shape", sorted(set(MEASURED) - {"64x64x64"}))
def test_the_best_eighth_of_the_predictions_holds_a_good_kernel(shape: str) -> None:
    measured, predicted = log_times(shape)
    best_eighth = np.argsort(predicted)[: len(predicted) // 8]
    assert measured[best_eighth].min() < measured.min() + np.log(1.08)
