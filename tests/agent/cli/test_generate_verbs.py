"""`tasks generate` and `tasks fingerprint`, from the command line. The tracer is a double, but for one slow test."""

import json
from itertools import pairwise
from pathlib import Path
from typing import Any

import pytest

from cudal2_agent.agent.cli.main import main
from cudal2_agent.agent.tasks.held_out import read_held_out
from cudal2_agent.agent.tasks.signature import signature
from cudal2_agent.contract.errors import UsageError
from cudal2_agent.contract.records.module_graph import Graph, GraphNode, Soundness
from cudal2_agent.contract.records.module_task import ModuleTask
from tests.agent.cli.test_bad_input import refusal
from tests.doubles.modules import relu_of_sum

pytest.importorskip("torch")


class Traces:
    """Every drawn problem rectifies a sum once more than the one before. Any other file with `def` is the first of them."""

    traced = 0

    def __enter__(self) -> "Traces":
        return self

    def __exit__(self, *_: object) -> None:
        """Nothing is open."""

    def trace(self, problem: str, name: str, **_: Any) -> ModuleTask:
        if "def" not in problem:
            raise UsageError(f"{name}: it is no task")
        if "class Model" not in problem:
            return _sums(1)
        Traces.traced += 1
        return _sums(Traces.traced)

    def reduced(self, task: ModuleTask, _: int) -> ModuleTask:
        return task

    def soundness(self, _: ModuleTask, seed: int, timeout_s: float | None = None) -> Soundness:
        assert timeout_s
        return Soundness(status="sound", seed=seed)


def _sums(count: int) -> ModuleTask:
    task = relu_of_sum(8)
    add, relu = task.graph.nodes
    names = ["relu", *(f"relu_{place}" for place in range(count))]
    more = [
        GraphNode(name=name, op=relu.op, args=({"node": before},), results=relu.results) for before, name in pairwise(names)
    ]
    return task.model_copy(update={"graph": Graph(nodes=(add, relu, *more), outputs={"out": names[-1]})})


@pytest.fixture(autouse=True)
def tracer(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> None:
    if "slow" not in request.keywords:
        Traces.traced = 0
        monkeypatch.setattr("cudal2_agent.sandbox.modules.tracing.tracer.open_tracer", Traces)


def generated(capsys: pytest.CaptureFixture[str], *words: str) -> dict[str, Any]:
    assert main(["tasks", "generate", "--jobs", "1", "--json", *words]) == 0
    answer: dict[str, Any] = json.loads(capsys.readouterr().out)
    return answer


def test_tasks_are_a_collection_and_the_answer_counts_them(home: Path, capsys: pytest.CaptureFixture[str]) -> None:
    answer = generated(capsys, "--count", "1", "--seed", "7")
    assert answer["folder"] == str(home / "tasks" / "drawn-7")
    assert (answer["tasks"], answer["drawn"], answer["refused"], sum(answer["levels"].values())) == (1, 1, {}, 1)
    assert main(["tasks", "list", "drawn-7"]) == 0
    assert capsys.readouterr().out.startswith("drawn-7:")
    assert generated(capsys, "--count", "1", "--seed", "7")["tasks"] == 1
    assert Traces.traced == 1, "what was found is kept"


def test_other_problems_are_held_out_by_folder_and_by_fingerprints(
    home: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    theirs = tmp_path / "theirs"
    theirs.mkdir()
    (theirs / "one.py").write_text("def one")
    (theirs / "none.py").write_text("nothing")
    assert main(["tasks", "fingerprint", str(theirs), "--out", str(tmp_path / "theirs.json")]) == 0
    shown = capsys.readouterr()
    assert "2 problems: 2 texts, 1 signatures" in shown.out
    assert "none is held out by its text only: it is no task" in shown.err
    held = read_held_out(tmp_path / "theirs.json")
    assert held.signatures == (signature(_sums(1)),)
    assert not list(tmp_path.glob(".theirs.json*"))
    for number, source in enumerate((tmp_path / "theirs.json", theirs)):
        Traces.traced = 0
        answer = generated(capsys, "--count", "1", "--out", str(home / f"out{number}"), "--held-out", str(source))
        assert answer["refused"] == {"held-out operations": 1}, source
    (tmp_path / "bad.json").write_text("{}")
    assert "holds no fingerprints" in refusal(["tasks", "generate", "--held-out", str(tmp_path / "bad.json")], capsys)


def test_folders_that_cannot_take_tasks(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    (tmp_path / "mine").mkdir()
    (tmp_path / "mine" / "notes.txt").write_text("")
    words = ["tasks", "generate", "--count", "1", "--out"]
    assert "holds files that were not generated" in refusal([*words, str(tmp_path / "mine")], capsys)
    generated(capsys, "--count", "1", "--out", str(tmp_path / "one"))
    assert "holds tasks of seed 0" in refusal([*words, str(tmp_path / "one"), "--seed", "1"], capsys)
    assert "is no file, folder or collection" in refusal([*words, str(tmp_path / "two"), "--held-out", "none"], capsys)


def test_problems_that_cannot_be_fingerprinted(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    (tmp_path / "empty").mkdir()
    (tmp_path / "one.py").write_text("def one")
    words = ["tasks", "fingerprint"]
    assert "is no file, folder or collection" in refusal([*words, "none", "--out", str(tmp_path / "f.json")], capsys)
    assert "holds no Python file" in refusal([*words, str(tmp_path / "empty"), "--out", str(tmp_path / "f.json")], capsys)
    assert "cannot be written" in refusal([*words, str(tmp_path / "one.py"), "--out", str(tmp_path / "empty")], capsys)


@pytest.mark.slow
def test_two_tasks_are_drawn_traced_and_sound(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    answer = generated(capsys, "--count", "2", "--seed", "7", "--out", str(tmp_path / "drawn"))
    assert answer["tasks"] == 2
    assert main(["tasks", "check", str(tmp_path / "drawn")]) == 0
