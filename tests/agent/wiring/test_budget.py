"""The budget of a search where nobody names one, and the limits that win over it."""

import json
from pathlib import Path

import pytest

from cudal2_agent.agent.cli.main import main
from cudal2_agent.agent.wiring.schedule_prior import with_budget
from cudal2_agent.contract.plan.chip import REFERENCE_CHIPS
from cudal2_agent.contract.records.task import Arch, GemmTask
from cudal2_agent.contract.settings.run_settings import TRAINED_BUDGET, RunSettings
from cudal2_agent.contract.settings.settings import CONFIG_FILE, load_settings
from tests.doubles.learned_policies import write_policy

H200 = REFERENCE_CHIPS[Arch.SM_90A]
H100 = H200.model_copy(update={"name": "H100 80GB HBM3"})
OTHER = H200.model_copy(update={"name": "H20"})
TASK = GemmTask(m=64, n=64, k=64)
DEFAULT = RunSettings().budget


@pytest.fixture(autouse=True)
def _home(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("CUDAL2_HOME", str(tmp_path / "home"))
    monkeypatch.chdir(tmp_path)


def budget(chip: object = H200, **flags: object) -> int:
    return with_budget(load_settings(**flags), TASK, chip).budget  # type: ignore[arg-type]


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
    named = with_budget(load_settings(minutes=0.5), TASK, H200)
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
