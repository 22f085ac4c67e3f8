"""The value of a verified candidate that was not measured."""

import pytest

from cudal2_agent.contract.records.evaluation import Unmeasured
from cudal2_agent.contract.reward.reward import CLIP, FLOOR
from cudal2_agent.contract.reward.roofline import roofline_us
from cudal2_agent.contract.reward.score import predicted_value
from tests.contract.records import FAULTS, measured
from tests.doubles.scripted import CHIP, TASK, unmeasured

ROOFLINE = roofline_us(TASK, CHIP)


def value_at(predicted_us: float) -> float | None:
    return predicted_value(unmeasured(predicted_us, "emulator"), TASK, CHIP)


def test_it_orders_kernels_by_their_predicted_time() -> None:
    values = [value_at(ROOFLINE * factor) for factor in (1.1, 1.5, 2.0, 10.0)]
    known = [value for value in values if value is not None]
    assert known == sorted(known, reverse=True)
    assert len(known) == 4
    assert 0 > known[0] > known[-1] > -CLIP > FLOOR, "no prediction is worse than a failure"


@pytest.mark.parametrize("fault", FAULTS, ids=lambda fault: str(fault.status))
def test_a_failure_has_the_floor(fault: Unmeasured) -> None:
    assert predicted_value(fault, TASK, CHIP) == FLOOR


def test_what_is_not_known_has_no_value() -> None:
    assert predicted_value(unmeasured(2 * ROOFLINE, "nothing"), TASK, CHIP) is None, "it was not executed"
    assert predicted_value(measured((2 * ROOFLINE,) * 3), TASK, CHIP) is None, "a measured time has a reward"
    stood_in = unmeasured(2 * ROOFLINE, "emulator")
    floor = stood_in.prediction.model_copy(update={"predicted_us": ROOFLINE, "floor_us": ROOFLINE})
    assert predicted_value(stood_in.model_copy(update={"prediction": floor}), TASK, CHIP) is None
