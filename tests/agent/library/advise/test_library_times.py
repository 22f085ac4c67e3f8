"""What AutoTuning takes: measured where it is known, else predicted."""

import pytest

from cudal2_agent.agent.library.advise.library_times import CallTime, LibraryTimes
from cudal2_agent.contract.plan.chip import REFERENCE_CHIPS
from cudal2_agent.contract.records.task import Arch, GemmTask
from cudal2_agent.contract.reward.roofline import roofline_us
from tests.agent.library.advise.test_products import product

CHIP = REFERENCE_CHIPS[Arch.SM_90A]


def test_a_measured_time_is_taken_for_its_own_layout_only(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("cudal2_agent.agent.library.advise.library_times._predicted_us", lambda _task, _chip: 9.0)
    times = LibraryTimes({GemmTask(m=4, n=16, k=8): 3.0}, CHIP)
    assert times.of(product()) == CallTime(us=3.0, predicted=False)
    for layout in ("tn", "tt"):
        assert times.of(product(layout=layout)) == CallTime(us=9.0, predicted=True)
    assert times.of(product(element="f32")) is None


def test_a_prediction_is_near_what_autotuning_takes() -> None:
    """A row of the sweep: 10.63 us of AutoTuning, measured on an H200."""
    found = LibraryTimes({}, CHIP).of(product(m=2048, n=256, k=4096))
    assert found is not None
    assert found.predicted
    assert found.us == pytest.approx(10.63, rel=0.3)


def test_a_batch_is_one_launch() -> None:
    one, many = (LibraryTimes({}, CHIP).of(product(m=512, n=512, k=64, batch=batch)) for batch in (2, 64))
    assert one is not None
    assert many is not None
    single = roofline_us(GemmTask(m=512, n=512, k=64), CHIP) - CHIP.launch_us
    assert many.us - one.us == pytest.approx(62 * single)
    assert many.predicted


def test_a_task_that_no_family_writes_takes_its_minimum(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("cudal2_agent.agent.library.advise.library_times.families", lambda _arch: ())
    found = LibraryTimes({}, CHIP).of(product(m=3, n=5, k=7))
    assert found == CallTime(us=roofline_us(GemmTask(m=3, n=5, k=7), CHIP), predicted=True)
