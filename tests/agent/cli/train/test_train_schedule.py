"""`train schedule` and `train online` as a user calls them: files, kills, bad input, and a search with what was trained."""

import json
import os
import signal
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from cudal2_agent.agent.cli.main import main
from cudal2_agent.policies.schedule.learned.policy_file import read_weights
from cudal2_agent.policies.training import tree_training
from cudal2_agent.store.store import open_store
from tests.doubles.building import compile_in_this_process
from tests.doubles.learned_policies import write_policy
from tests.doubles.timed_runs import record_runs, tasks

ROOT = Path(__file__).resolve().parents[4]
EVERY = ("--stages", "supervised,contrastive,group-relative")
QUICK = ("--epochs", "12", "--members", "1", "--jobs", "1")


pytestmark = pytest.mark.usefixtures("home")


@pytest.fixture
def _runs(home: Path) -> None:
    home.mkdir()
    with open_store(f"sqlite:///{home / 'trajectories.sqlite'}") as store:
        record_runs(store, tasks()[:6])


@pytest.fixture
def _quick_builds(kept_builds: Path) -> Iterator[None]:
    with pytest.MonkeyPatch.context() as patch:
        compile_in_this_process(patch, kept_builds)
        yield


def complaint(words: list[str], capsys: pytest.CaptureFixture[str]) -> str:
    assert main(words) == 2
    return capsys.readouterr().err.strip().splitlines()[-1]


@pytest.mark.usefixtures("_runs", "_quick_builds")
def test_what_is_trained_is_listed_and_searches_use_it(home: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["train", "schedule", "--name", "mine", "--test-share", "0.3", *EVERY, *QUICK]) == 0
    shown = capsys.readouterr()
    assert "prior    mine, for H200" in shown.out
    assert "supervised: 12 of 12, loss " in shown.err
    logged = [json.loads(line) for line in (home / "policies/mine.safetensors.training/training.jsonl").open()]
    assert [row["stage"] for row in logged] == ["supervised"] * 12 + ["contrastive"] * 2 + ["group-relative"] * 2
    assert main(["prior", "list"]) == 0
    assert "mine" in capsys.readouterr().out
    words = ["optimize", "--shape", "64x64x64", "--budget", "2", "--device", "emulator", "--json", "--minutes", "2"]
    found = []
    for prior in ("mine", "analytic"):
        assert main([*words, "--prior", prior]) == 0
        run_id = json.loads(capsys.readouterr().out)["run_id"]
        with open_store(f"sqlite:///{home / 'trajectories.sqlite'}") as store:
            found.append([one.candidate.id for one in store.steps(run_id)])
    assert found[0] != found[1]


@pytest.mark.usefixtures("_runs")
def test_a_killed_training_goes_on_and_ends_with_the_same_weights(home: Path) -> None:
    command = [
        sys.executable,
        "-c",
        "from cudal2_agent.agent.cli.main import run; run()",
        "train",
        "schedule",
        "--name",
        "killed",
        *EVERY,
        *QUICK,
    ]
    environment = {**os.environ, "PYTHONPATH": str(ROOT)}
    with subprocess.Popen(command, env=environment, stderr=subprocess.PIPE, text=True) as process:
        assert process.stderr is not None
        for line in process.stderr:
            if line.startswith("contrastive: 2"):
                break
        os.kill(process.pid, signal.SIGKILL)
    assert not (home / "policies/killed.safetensors").exists()
    again = subprocess.run(command, env=environment, capture_output=True, text=True, check=True)
    assert "supervised" not in again.stderr
    assert main(["train", "schedule", "--name", "killed", "--out", "whole.safetensors", *EVERY, *QUICK]) == 0
    assert (home / "policies/killed.safetensors").read_bytes() == Path("whole.safetensors").read_bytes()


@pytest.mark.usefixtures("_runs", "_quick_builds")
def test_a_policy_learns_by_trying(home: Path, capsys: pytest.CaptureFixture[str]) -> None:
    write_policy(home / "policies" / "mine.safetensors")
    words = ["train", "online", "--policy", "mine", "--shapes", "64x64x64", "--steps", "1", "--tasks", "1", "--group", "2"]
    assert main([*words, "--name", "tried", "--device", "emulator", "--rate", "0.01", "--json"]) == 0
    shown = capsys.readouterr()
    card = json.loads(shown.out)
    assert (card["name"], card["base"], card["stages"]) == ("tried", "mine", ["supervised", "online"])
    assert "step 1 of 1: 2 scored" in shown.err
    assert (home / "policies/tried.safetensors").read_bytes() != (home / "policies/mine.safetensors").read_bytes()


@pytest.mark.usefixtures("_runs")
def test_trees_are_grown_with_a_policy_or_for_one_that_is_there(
    home: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(tree_training, "ROUNDS", 20)
    assert "name one with --start, or a stage" in complaint(["train", "schedule", "--stages", "trees"], capsys)
    plain, mine = home / "policies/plain.safetensors", home / "policies/mine.safetensors"
    once = [*QUICK, "--epochs", "1", "--test-share", "0.3"]
    assert main(["train", "schedule", "--name", "plain", "--stages", "supervised", *once]) == 0
    assert read_weights(plain).trees is None
    words = ["train", "schedule", "--name", "mine", "--start", str(plain), "--stages", "trees", "--jobs", "1"]
    assert main([*words, "--test-share", "0.3"]) == 0
    assert "trees: 1 of 1; held out: first within 5 % " in capsys.readouterr().err
    card, network, trees = read_weights(mine)
    assert (card.stages, card.base) == (("supervised", "trees"), "plain")
    assert trees is not None
    before = read_weights(plain).network.tensors
    assert all((network.tensors[name] == value).all() for name, value in before.items()), "the network is left alone"
    assert main(["train", "schedule", "--name", "whole", *once]) == 0
    whole = read_weights(home / "policies/whole.safetensors").trees
    assert whole is not None
    assert all((whole.tensors[name] == value).all() for name, value in trees.tensors.items()), "grown with the network or after"
    assert main(["train", "schedule", "--name", "more", "--start", str(mine), "--stages", "supervised", *QUICK]) == 0
    card, _, kept = read_weights(home / "policies/more.safetensors")
    assert card.stages == ("supervised", "trees")
    assert kept is not None
    assert all((kept.tensors[name] == value).all() for name, value in trees.tensors.items())


def test_wrong_input_is_one_line(home: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert "the store has no finished run" in complaint(["train", "schedule"], capsys)
    assert "--stages: 'magic' is not known" in complaint(["train", "schedule", "--stages", "magic"], capsys)
    assert "there is no prior 'none'" in complaint(["train", "online", "--prior", "none", "--shapes", "64x64x64"], capsys)
    old = write_policy(home / "policies" / "old.safetensors", fingerprint="0" * 16)
    words = ["train", "online", "--policy", str(old), "--shapes", "64x64x64", "--device", "emulator"]
    assert "other features than this version computes" in complaint(words, capsys)


@pytest.mark.usefixtures("_runs")
def test_nothing_to_learn_from_and_other_options_are_said(capsys: pytest.CaptureFixture[str]) -> None:
    assert "no finished run of a H20;" in complaint(["train", "schedule", "--chip", "H20"], capsys)
    assert main(["train", "schedule", "--name", "mine", "--stages", "supervised", *QUICK, "--epochs", "1"]) == 0
    capsys.readouterr()
    assert "other options or data" in complaint(["train", "schedule", "--name", "mine", "--seed", "1", *QUICK], capsys)
