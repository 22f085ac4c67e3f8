"""`train lm`, `lm-evaluate` and `lm-merge`, and `optimize --policy lm`, as a user calls them. The score is scripted."""

import json
import shutil
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest

from cudal2_agent.agent.campaign.shapes import held_out_shapes
from cudal2_agent.agent.cli.main import main
from cudal2_agent.contract.errors import UsageError
from cudal2_agent.policies.lm import needs
from cudal2_agent.store.store import open_store
from tests.policies.lm.tiny import TASKS, PriorScore, record_search, search, tiny_model

MODEL = "the tiny model"
QUICK = ["--steps", "2", "--batch", "4", "--group", "2", "--rank", "4", "--reply-tokens", "8"]


@pytest.fixture(autouse=True)
def _home(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("CUDAL2_HOME", str(tmp_path))
    monkeypatch.chdir(tmp_path)


@pytest.fixture(scope="module")
def model(tmp_path_factory: pytest.TempPathFactory) -> str:
    return str(tiny_model(tmp_path_factory.mktemp("models") / "base"))


@pytest.fixture
def _searched(tmp_path: Path) -> None:
    with open_store(f"sqlite:///{tmp_path / 'trajectories.sqlite'}") as store:
        for index, task in enumerate(TASKS):
            record_search(store, search(task, f"run-{index}"))


@pytest.fixture
def _scored(monkeypatch: pytest.MonkeyPatch) -> None:
    from cudal2_agent.agent.learning.environment import sandbox_score

    @contextmanager
    def opened(*_: Any, **__: Any) -> Iterator[PriorScore]:
        yield PriorScore()

    monkeypatch.setattr(sandbox_score, "open_score", opened)


@pytest.mark.usefixtures("_searched", "_scored")
def test_stages_evaluation_and_merge(model: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["train", "lm", "--stage", "sft", "--model", model, "--out", "sft", "--json", *QUICK]) == 0
    answer = json.loads(capsys.readouterr().out)
    assert answer["out"] == "sft"
    assert answer["adapter"]["stages"][0]["counts"]["runs"] == 2
    assert main(["train", "lm", "--stage", "grpo", "--adapter", "sft", "--out", "grpo", *QUICK]) == 0
    assert capsys.readouterr().out.startswith("grpo: grpo, 2 steps on 2 examples in ")
    assert main(["train", "lm-evaluate", "grpo", "--shape", "64x64x64", "--proposals", "1"]) == 0
    head, *rows = capsys.readouterr().out.splitlines()
    assert head.split() == ["proposer", "tasks", "proposals", "valid", "verified", "distinct", "first", "mean", "best"]
    assert [row.split("  ")[0] for row in rows[:4]] == ["grpo", "grpo, constrained", "random valid", "analytic prior"]
    assert rows[1].split()[4:6] == rows[3].split()[4:6] == ["100%", "100%"]
    assert main(["train", "lm-evaluate", "grpo", "--shape", "64x64x64", "--proposals", "1", "--json"]) == 0
    assert json.loads(capsys.readouterr().out)["figures"][0]["proposer"] == "grpo"
    assert main(["train", "lm-merge", "grpo", "--out", "merged"]) == 0
    assert Path("merged/model.safetensors").exists()


@pytest.mark.usefixtures("_searched")
def test_an_interrupted_stage_resumes_by_its_folder_alone(model: str, capsys: pytest.CaptureFixture[str]) -> None:
    begin = ["train", "lm", "--stage", "sft", "--model", model, "--out", "sft", "--held-out", "held.json", *QUICK]
    Path("held.json").write_text('["64x64x64"]')
    with pytest.MonkeyPatch.context() as patch:
        from cudal2_agent.policies.lm import stages

        def interrupted(*_: Any) -> None:
            raise KeyboardInterrupt

        patch.setattr(stages, "_train", interrupted)
        assert main(begin) == 130
    capsys.readouterr()
    assert main(begin) == 2
    assert "continue it with --resume" in capsys.readouterr().err
    assert main(["train", "lm", "--resume", "--out", "sft", "--json"]) == 0
    stage = json.loads(capsys.readouterr().out)["adapter"]["stages"][0]
    assert (stage["counts"]["held_out"], stage["counts"]["examples"]) == (1, 1)


@pytest.mark.parametrize(
    ("words", "said"),
    [
        ([], "say what to do: --stage NAME"),
        (["--stage", "sft", "--resume", "--out", "y"], "say what to do: --stage NAME"),
        (["--stage", "sft"], "--out is missing"),
        (["--stage", "dpo", "--out", "x"], "choose from sft, contrastive, grpo"),
        (["--stage", "sft", "--out", "x", "--learning-rate", "7"], "--learning-rate: Input should be less than or equal to 1"),
        (["--stage", "sft", "--out", "x", "--model", MODEL], "the store holds no measured schedule"),
        (["--stage", "sft", "--out", "x", "--model", MODEL, "--examples", "none.json"], "examples none.json cannot be read"),
        (["--stage", "sft", "--out", "x", "--model", MODEL, "--held-out", "none.json"], "none.json cannot be read as JSON"),
        (["--resume", "--out", "x"], "there is no interrupted training of x"),
        (["--resume", "--out", "x", "--steps", "9"], "leave out the others"),
    ],
)
def test_wrong_words_are_one_line(words: list[str], said: str, model: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert_one_line(["lm", *(model if word is MODEL else word for word in words)], said, capsys)


def _broken_models(model: str) -> dict[str, str]:
    """Folders that look like a model, and what is wrong with them."""
    for name, left_out in {"no-weights": "*.safetensors", "no-settings": "config.json", "no-words": "tokenizer*"}.items():
        shutil.copytree(model, name, ignore=shutil.ignore_patterns(left_out))
    return {
        "no-weights": "has no weights",
        "no-settings": "cannot be loaded",
        "no-words": "cannot be loaded",
        "no/such/folder": "cannot be loaded",
    }


@pytest.mark.usefixtures("_searched")
def test_the_model_is_looked_at_before_examples_are_made(model: str, capsys: pytest.CaptureFixture[str]) -> None:
    from cudal2_agent.policies.lm import examples

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(examples, "make_examples", lambda *_: pytest.fail("examples were made"))
        for name, said in _broken_models(model).items():
            assert_one_line(["lm", "--stage", "sft", "--model", name, "--out", "sft"], said, capsys)
        assert_one_line(["lm", "--stage", "sft", "--adapter", "none", "--out", "sft"], "none is not an adapter", capsys)
    assert not Path("sft.training").exists()


@pytest.mark.usefixtures("_searched")
@pytest.mark.parametrize("fails", ["load_base", "set_seed", "_trainer"])
def test_a_start_that_failed_may_be_given_again(model: str, fails: str, capsys: pytest.CaptureFixture[str]) -> None:
    from cudal2_agent.contract.errors import UsageError
    from cudal2_agent.policies.lm import stages

    begin = ["train", "lm", "--stage", "sft", "--model", model, "--out", "sft", *QUICK]

    def failing(*_: Any, **__: Any) -> None:
        raise UsageError("the weights are damaged")

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(stages, fails, failing)
        assert main(begin) == 2
    assert "the weights are damaged" in capsys.readouterr().err
    assert main(begin) == 0


def test_what_evaluates_and_merges_names_what_is_missing(capsys: pytest.CaptureFixture[str]) -> None:
    assert_one_line(["lm-evaluate", "x"], "lm-evaluate needs shapes", capsys)
    assert_one_line(["lm-merge", "x", "--out", "y"], "x is not an adapter of `train lm`", capsys)


def assert_one_line(words: list[str], said: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["train", *words]) == 2
    error = capsys.readouterr().err.strip()
    assert said in error
    assert error.startswith("error: ")
    assert "\n" not in error


def test_an_extra_that_is_not_installed_is_named(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    monkeypatch.setattr(needs, "find_spec", lambda name: None if name in ("trl", "peft") else object())
    assert main(["train", "lm", "--stage", "sft", "--out", "x"]) == 2
    assert "needs peft, trl; run: pip install 'cudal2-agent[lm]'" in capsys.readouterr().err
    assert main(["optimize", "--shape", "64x64x64", "--policy", "lm", "--lm", "x", "--device", "none", "--no-knowledge"]) == 2
    assert "needs peft; run: pip install" in capsys.readouterr().err


@pytest.mark.usefixtures("_searched")
def test_a_search_with_a_model_that_learned_next_to_nothing_tries_schedules_of_the_task(
    model: str, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setenv("CUDAL2_ROUND_SIZE", "1")
    assert main(["train", "lm", "--stage", "sft", "--model", model, "--out", "sft", *QUICK]) == 0
    search_ = ["optimize", "--shape", "64x64x64", "--arch", "sm_90a", "--policy", "lm", "--device", "none", "--no-knowledge"]
    assert main(search_) == 2
    assert "train one with `cudal2-agent train lm` and name it with --lm FOLDER" in capsys.readouterr().err
    assert main([*search_, "--lm", "sft", "--budget", "2", "--json"]) == 0
    output = capsys.readouterr()
    assert "named no schedule" not in output.err
    assert "the budget of 2 candidates is spent" in json.loads(output.out)["reason"]


def test_a_file_of_held_out_shapes_that_names_none_is_refused(tmp_path: Path) -> None:
    (tmp_path / "other.json").write_text('{"shapes": 3}')
    with pytest.raises(UsageError, match="names no shapes"):
        held_out_shapes(tmp_path / "other.json")
