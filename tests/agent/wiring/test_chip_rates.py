"""Fitted rates in the home folder: used for their chip, and left out with a notice where they are damaged."""

from datetime import UTC, datetime
from pathlib import Path

import pytest

from cudal2_agent.agent.wiring.chip_rates import FittedRates, keep_rates, rates_of, rates_path
from cudal2_agent.agent.wiring.schedule_prior import open_prior
from cudal2_agent.contract.errors import UsageError
from cudal2_agent.contract.records.task import GemmTask
from cudal2_agent.contract.settings.settings import load_settings
from cudal2_agent.policies.schedule.optimiser.pool_prior import ANALYTIC
from cudal2_agent.policies.schedule.prior import predict_many_us
from tests.doubles.scripted import ENVIRONMENT
from tests.doubles.slower_chip import EXPECTED, good_entries

TASK = GemmTask(m=128, n=128, k=128)

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


def test_searches_on_the_chip_use_the_rates_that_were_fitted_on_it(tmp_path: Path) -> None:
    settings = load_settings(home=tmp_path)
    assert open_prior(settings)(TASK, EXPECTED) is ANALYTIC
    keep_rates(tmp_path, RATES)
    prior = open_prior(settings)(TASK, EXPECTED)
    entries = good_entries(TASK, 3)
    predicted = predict_many_us([entry.work for entry in entries], TASK, RATES.of(EXPECTED))
    assert list(prior.predict_us(entries, TASK, EXPECTED)) == list(predicted)
    assert list(predicted) != list(ANALYTIC.predict_us(entries, TASK, EXPECTED))
    assert not RATES.of(EXPECTED).measured


def test_another_chip_has_not(tmp_path: Path) -> None:
    keep_rates(tmp_path, RATES)
    other = EXPECTED.model_copy(update={"name": "Slow/90"})  # a name that gives the same file
    assert rates_path(tmp_path, other.name) == rates_path(tmp_path, EXPECTED.name)
    assert rates_of(other, tmp_path) is None


@pytest.mark.parametrize("text", ["", "{", '{"format": "cudal2-chip", "version": 2}', "\udcff"])
def test_a_damaged_file_is_left_out_with_a_notice(tmp_path: Path, text: str, caplog: pytest.LogCaptureFixture) -> None:
    path = keep_rates(tmp_path, RATES)
    path.write_bytes(text.encode("utf-8", "surrogateescape"))
    assert open_prior(load_settings(home=tmp_path))(TASK, EXPECTED) is ANALYTIC
    [message] = caplog.messages
    assert "calibrate again" in message
    assert "\n" not in message


def test_a_home_that_cannot_be_written_is_a_users_error(tmp_path: Path) -> None:
    (tmp_path / "chips").write_text("a file where the folder should be")
    with pytest.raises(UsageError, match="CUDAL2_HOME"):
        keep_rates(tmp_path, RATES)
