"""Fitted rates in the home folder: used for their chip, and left out with a notice where they are damaged."""

from datetime import UTC, datetime
from pathlib import Path

import pytest

from agent.wiring.chip_rates import FittedRates, keep_rates, rates_path, with_own_rates
from contract.errors import UsageError
from contract.events import Event, Notice
from tests.doubles.scripted import ENVIRONMENT
from tests.doubles.slower_chip import EXPECTED

RATES = FittedRates(
    chip=EXPECTED.name,
    tensor_tflops=400.0,
    dram_tbps=2.0,
    launch_us=1.0,
    shapes=9,
    schedules=99,
    environment=ENVIRONMENT,
    product="0.1.0",
    created_at=datetime(2026, 11, 23, tzinfo=UTC),
)


def said(home: Path) -> tuple[float, list[str]]:
    events: list[Event] = []
    chip = with_own_rates(EXPECTED, home, events.append)
    return chip.tensor_tflops, [event.message for event in events if isinstance(event, Notice)]


def test_a_chip_has_the_rates_that_were_fitted_on_it(tmp_path: Path) -> None:
    assert said(tmp_path) == (EXPECTED.tensor_tflops, [])
    keep_rates(tmp_path, RATES)
    chip = with_own_rates(EXPECTED, tmp_path, lambda _: None)
    assert (chip.tensor_tflops, chip.dram_tbps, chip.launch_us, chip.sms) == (400.0, 2.0, 1.0, EXPECTED.sms)
    assert not chip.measured


def test_another_chip_has_not(tmp_path: Path) -> None:
    keep_rates(tmp_path, RATES)
    other = EXPECTED.model_copy(update={"name": "Slow/90"})  # a name that gives another file
    assert rates_path(tmp_path, other.name) == rates_path(tmp_path, EXPECTED.name)
    assert with_own_rates(other, tmp_path, lambda _: None) == other


@pytest.mark.parametrize("text", ["", "{", '{"format": "cudal2-chip", "version": 2}', "\udcff"])
def test_a_damaged_file_is_left_out_with_a_notice(tmp_path: Path, text: str) -> None:
    path = keep_rates(tmp_path, RATES)
    path.write_bytes(text.encode("utf-8", "surrogateescape"))
    rate, notices = said(tmp_path)
    assert rate == EXPECTED.tensor_tflops
    assert len(notices) == 1
    assert "calibrate again" in notices[0]
    assert "\n" not in notices[0]


def test_a_home_that_cannot_be_written_is_a_users_error(tmp_path: Path) -> None:
    (tmp_path / "chips").write_text("a file where the folder should be")
    with pytest.raises(UsageError, match="CUDAL2_HOME"):
        keep_rates(tmp_path, RATES)
