"""Which prior a search starts from: by name, by chip, with fitted rates; what is said of unusable files; and its budget."""

import json
import logging
from datetime import UTC, datetime
from pathlib import Path

import pytest

from cudal2_agent.agent.cli.main import main
from cudal2_agent.agent.wiring.chip_rates import FittedRates, keep_rates, rates_of, rates_path
from cudal2_agent.agent.wiring.schedule_prior import open_prior, with_budget
from cudal2_agent.contract.errors import UsageError
from cudal2_agent.contract.plan.chip import REFERENCE_CHIPS
from cudal2_agent.contract.records.task import Arch, GemmTask
from cudal2_agent.contract.settings.run_settings import TRAINED_BUDGET, RunSettings
from cudal2_agent.contract.settings.settings import CONFIG_FILE, Settings, load_settings
from cudal2_agent.policies.schedule.optimiser.pool_prior import ANALYTIC
from cudal2_agent.policies.schedule.prior import predict_many_us
from tests.doubles.learned_policies import write_policy
from tests.doubles.scripted import ENVIRONMENT
from tests.doubles.slower_chip import EXPECTED, good_entries

H200 = REFERENCE_CHIPS[Arch.SM_90A]
OTHER = H200.model_copy(update={"name": "H20"})
TASK = GemmTask(m=64, n=64, k=64)


def settings(home: Path, prior: str = "auto") -> Settings:
    return Settings(home=home, schedule_prior=prior)


def test_a_chip_that_nothing_learned_from_has_the_analytic_prior(tmp_path: Path) -> None:
    assert open_prior(settings(tmp_path))(TASK, OTHER) is ANALYTIC
    assert open_prior(settings(tmp_path, "analytic"))(TASK, H200) is ANALYTIC


def test_a_known_chip_has_what_learned_from_it_own_policies_first(tmp_path: Path) -> None:
    assert open_prior(settings(tmp_path))(TASK, H200).name == "h200"
    write_policy(tmp_path / "policies" / "a.safetensors", name="mine")
    write_policy(tmp_path / "policies" / "b.safetensors", name="other", chips=("H20",))
    assert open_prior(settings(tmp_path))(TASK, H200).name == "mine"
    assert open_prior(settings(tmp_path))(TASK, OTHER).name == "other"


def test_files_that_cannot_be_used_are_said_and_left_out(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    write_policy(tmp_path / "policies" / "old.safetensors", name="old", fingerprint="0" * 16)
    (tmp_path / "policies" / "torn.safetensors").write_bytes(b"half")
    with caplog.at_level(logging.WARNING):
        assert open_prior(settings(tmp_path))(TASK, H200).name == "h200"
    assert "torn.safetensors holds no prior" in caplog.text
    assert "prior old was trained by version 0.1.0 on other features" in caplog.text


def test_a_named_policy_must_be_usable_and_another_chip_is_said(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    with pytest.raises(UsageError, match="there is no prior 'none'"):
        open_prior(settings(tmp_path, "none"))
    write_policy(tmp_path / "policies" / "old.safetensors", name="old", fingerprint="0" * 16)
    with pytest.raises(UsageError, match="other features"):
        open_prior(settings(tmp_path, "old"))
    path = write_policy(tmp_path / "far.safetensors", name="far", chips=("H100",))
    with caplog.at_level(logging.WARNING):
        assert open_prior(settings(tmp_path, str(path)))(TASK, H200).name == "far"
    assert "prior far was trained on H100, not on H200" in caplog.text


H100 = H200.model_copy(update={"name": "H100 80GB HBM3"})
DEFAULT = RunSettings().budget


@pytest.fixture(autouse=True)
def _home(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("CUDAL2_HOME", str(tmp_path / "home"))
    monkeypatch.chdir(tmp_path)


def budget(chip: object = H200, **flags: object) -> int:
    return with_budget(load_settings(**{"policy": "schedule", **flags}), TASK, chip).budget  # type: ignore[arg-type]


def test_few_candidates_suffice_where_the_prior_was_trained_on_the_chip() -> None:
    assert budget() == budget(H100) == budget(schedule_prior="h200") == TRAINED_BUDGET < DEFAULT


def test_other_searches_keep_the_whole_budget(tmp_path: Path) -> None:
    assert budget(OTHER) == budget(schedule_prior="analytic") == budget(H100, schedule_prior="h200") == DEFAULT
    assert budget(policy="chat") == budget(policy="portfolio") == DEFAULT
    write_policy(tmp_path / "home" / "policies" / "b.safetensors", name="other", chips=("H20",))
    assert budget(OTHER) == TRAINED_BUDGET


def test_a_budget_that_somebody_names_wins(monkeypatch: pytest.MonkeyPatch) -> None:
    assert budget(budget=DEFAULT) == DEFAULT
    monkeypatch.setenv("CUDAL2_BUDGET", "24")
    assert budget() == 24
    monkeypatch.delenv("CUDAL2_BUDGET")
    Path(CONFIG_FILE).write_text("budget = 40\n")
    assert budget() == 40


def test_the_time_limit_stays_as_it_is_named() -> None:
    assert with_budget(load_settings(), TASK, H200).minutes == RunSettings().minutes
    named = with_budget(load_settings(policy="schedule", minutes=0.5), TASK, H200)
    assert (named.budget, named.minutes) == (TRAINED_BUDGET, 0.5)


@pytest.mark.parametrize(
    ("words", "count"), [([], TRAINED_BUDGET), (["--budget", "3"], 3), (["--prior", "analytic", "--minutes", "0.01"], DEFAULT)]
)
def test_optimize_takes_it_and_records_it(words: list[str], count: int, capsys: pytest.CaptureFixture[str]) -> None:
    command = ["optimize", "--shape", "64x64x64", "--arch", "sm_90a", "--device", "none", "--no-knowledge", "--json", *words]
    assert main(command) in (0, 1)
    printed = capsys.readouterr()
    assert f": up to {count} candidates, " in printed.err
    assert main(["runs", "show", json.loads(printed.out)["run_id"], "--json"]) == 0
    assert json.loads(capsys.readouterr().out)["settings"]["budget"] == count


SQUARE = GemmTask(m=128, n=128, k=128)

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
    assert open_prior(settings)(SQUARE, EXPECTED) is ANALYTIC
    keep_rates(tmp_path, RATES)
    prior = open_prior(settings)(SQUARE, EXPECTED)
    entries = good_entries(SQUARE, 3)
    predicted = predict_many_us([entry.work for entry in entries], SQUARE, RATES.of(EXPECTED))
    assert list(prior.predict_us(entries, SQUARE, EXPECTED)) == list(predicted)
    assert list(predicted) != list(ANALYTIC.predict_us(entries, SQUARE, EXPECTED))
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
    assert open_prior(load_settings(home=tmp_path))(SQUARE, EXPECTED) is ANALYTIC
    [message] = caplog.messages
    assert "calibrate again" in message
    assert "\n" not in message


def test_a_home_that_cannot_be_written_is_a_users_error(tmp_path: Path) -> None:
    (tmp_path / "chips").write_text("a file where the folder should be")
    with pytest.raises(UsageError, match="CUDAL2_HOME"):
        keep_rates(tmp_path, RATES)
