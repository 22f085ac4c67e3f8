"""`cudal2-agent tune`, from the command line, on a machine without a GPU."""

import json
from pathlib import Path

import pytest

from cudal2_agent.agent.campaign.campaign import Campaign, CampaignPlan
from cudal2_agent.agent.cli.main import main
from cudal2_agent.agent.cli.torch_models.tune_parts import TunePlace, campaign_search
from cudal2_agent.agent.library.advise.known_kernels import Target
from cudal2_agent.contract.records.task import Arch, GemmTask, Layout
from cudal2_agent.contract.settings.run_settings import TRAINED_BUDGET, UNTRAINED_BUDGET
from cudal2_agent.contract.settings.settings import load_settings
from cudal2_agent.store.store import open_store
from tests.agent.cli.test_bad_input import refusal
from tests.doubles.libraries import library_entry, write_entries

MODEL = """
import torch
def model():
    return torch.nn.Sequential(torch.nn.Linear(64, 32, bias=False), torch.nn.Linear(32, 48)).half()
def inputs(tokens):
    return (torch.ones(tokens, 64).half(),)
"""
TASK = GemmTask(m=16, n=32, k=64, layout=Layout.TN)


@pytest.fixture(autouse=True)
def _home(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("CUDAL2_HOME", str(tmp_path / "home"))
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr("cudal2_agent.agent.library.advise.library_times._predicted_us", lambda _task, _chip: 2.0)
    (tmp_path / "model.py").write_text(MODEL)


def test_a_plan_shows_what_is_known_and_what_would_be_searched(capsys: pytest.CaptureFixture[str], tmp_path: Path) -> None:
    write_entries(tmp_path / "small", [library_entry(TASK)])
    assert main(["tune", "model.py", "--tokens", "16,8", "--plan", "--chip", "H200", "--library", "small"]) == 0
    out, err = capsys.readouterr()
    rows = [line.split() for line in out.splitlines()]
    assert ["forward", "16x32x64", "tn", "f16", "1", "served"] in rows
    assert ["forward", "8x32x64", "tn", "f16", "1", "missing"] in rows
    assert ["forward", "16x48x32", "tn", "f16", "bias", "1", "missing"] in rows
    assert out.splitlines()[-1] == "3 of 4 matrix products would be searched"
    assert err == "recording the matrix products of model.py\n"
    assert (tmp_path / "model-tuned" / "passes.json").is_file()


def test_a_plan_as_json(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["tune", "model.py", "--tokens", "16", "--plan", "--chip", "H200", "--json"]) == 0
    told = json.loads(capsys.readouterr().out)
    assert sorted((one["n"], one.get("bias", False)) for one in told["wanted"]) == [(32, False), (48, True)]
    assert told["left"] == 0
    assert {one["status"] for one in told["advice"]["products"]} == {"missing"}


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        ((), "there is no GPU for this product here"),
        (("--plan",), "name one with --chip"),
        (("--plan", "--chip", "H2000"), "--chip 'H2000' is not known"),
        (("--chip", "H200"), "--chip is for --plan and --device"),
        (("--device", "exec:ssh gpu1 cudal2-agent worker"), "--device needs --chip"),
        (("--device", "cuda:0", "--chip", "H200"), "write exec:COMMAND or spool:FOLDER"),
        (("--device", "spool:/s", "--gpus", "0"), "leave out --gpus"),
        (("--plan", "--chip", "H200", "--ways", "eager,slow"), "--ways 'eager,slow'"),
        (("--plan", "--chip", "H200", "--ways", ""), "--ways ''"),
        (("--plan", "--chip", "H100", "--library", "small"), "was measured on H200"),
        (("--tokens", "x", "--plan", "--chip", "H200"), "--tokens 'x'"),
    ],
)
def test_bad_input_is_one_line(
    arguments: tuple[str, ...], said: str, capsys: pytest.CaptureFixture[str], tmp_path: Path
) -> None:
    write_entries(tmp_path / "small", [library_entry(TASK)])
    tokens = () if "--tokens" in arguments else ("--tokens", "16")
    assert said in refusal(["tune", "model.py", *tokens, *arguments], capsys)


@pytest.mark.parametrize(
    ("named", "chip", "budget"),
    [(None, "H200", TRAINED_BUDGET), (None, "H20", UNTRAINED_BUDGET), (5, "H200", 5), (5, "H20", 5)],
)
def test_the_budget_suits_the_prior_of_the_chip(
    named: int | None, chip: str, budget: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    plans: list[CampaignPlan] = []
    monkeypatch.setattr(Campaign, "__init__", lambda _self, plan, *_: plans.append(plan))
    monkeypatch.setattr(Campaign, "run", lambda _self: None)
    settings = load_settings(budget=named, use_knowledge=False, profile="off")
    campaign_search(settings, TunePlace(Target(name=chip, arch=Arch.SM_90A), ("emulator/0",), measures=False))(
        "tune-test", {TASK: 1.0}, None
    )
    assert [plan.settings.budget for plan in plans] == [budget]


@pytest.mark.parametrize(
    ("named", "finalists", "baselines"), [({}, 3, "cublaslt"), ({"finalists": 5, "race_baselines": "all"}, 5, "all")]
)
def test_a_final_race_is_brief_unless_the_user_says_otherwise(
    named: dict[str, object], finalists: int, baselines: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    plans: list[CampaignPlan] = []
    monkeypatch.setattr(Campaign, "__init__", lambda _self, plan, *_: plans.append(plan))
    monkeypatch.setattr(Campaign, "run", lambda _self: None)
    settings = load_settings(use_knowledge=False, profile="off", compile_jobs=16, **named)
    place = TunePlace(Target(name="H200", arch=Arch.SM_90A), ("emulator/0",), measures=False)
    campaign_search(settings, place)("tune-test", {TASK: 1.0}, None)
    [plan] = plans
    assert (plan.settings.finalists, plan.settings.race_baselines, plan.provers) == (finalists, baselines, 4)


def test_searches_are_a_campaign_that_a_later_call_resumes(capsys: pytest.CaptureFixture[str]) -> None:
    """On the emulator, which proves kernels and times none. The limit is over when the second call begins."""
    settings = load_settings(budget=1, use_knowledge=False, profile="off", compile_jobs=1)
    search = campaign_search(settings, TunePlace(Target(name="H200", arch=Arch.SM_90A), ("emulator/0",), measures=False))
    search("tune-test", {TASK: 1.0}, None)
    with open_store(settings.store_url) as store:
        [done] = store.results()
    assert (done.task, done.candidates) == (TASK, 1)
    search("tune-test", {TASK: 1.0, GemmTask(m=16, n=48, k=64, layout=Layout.TN): 1.0}, 0.001)
    with open_store(settings.store_url) as store:
        assert len(store.results()) == 1
    assert "16x32x64 tn" in capsys.readouterr().err
