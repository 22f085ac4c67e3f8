"""A scripted strong author behind a real HTTP server drives whole runs: real command line, graph, store and builder.

Without an executor a wrong result cannot be detected: `04_wrong_result` is built and marked as not executed, as are all
kernels after it. The emulator detects it. A scripted GPU shows what the author's prompts hold on a machine with one; the run
on a real GPU is `tests/gpu/test_strong_author_gpu.py`.
"""

import json
import re
from collections.abc import Callable, Sequence
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import pytest

from cudal2_agent.agent.cli.main import main
from cudal2_agent.contract.events import Emit
from cudal2_agent.contract.records.evaluation import WITNESS, CompileFailed, Measured, Rejected, Unmeasured, Wrong
from cudal2_agent.contract.records.trajectory import Step
from cudal2_agent.contract.reward.reward import FLOOR
from cudal2_agent.contract.reward.speedup import median_us
from cudal2_agent.contract.settings.options import CompileOptions
from cudal2_agent.sandbox.local import open_sandbox
from cudal2_agent.store.store import Store, open_store
from tests.author.machine import FOOLED_US, Fooled, Machine
from tests.author.script import SCRIPT, TASK, Author
from tests.doubles.chat_server import ScriptedServer

KEY = "sk-strong-author-0123456789"
BUILT = ["rejected", "compile_failed", "compile_failed", *["unmeasured"] * 5]
EMULATED = ["rejected", "compile_failed", "compile_failed", "wrong", *["unmeasured"] * 4]
EXECUTED = ["rejected", "compile_failed", "compile_failed", "wrong", *["measured"] * 4]


@pytest.fixture(scope="module")
def home(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("home")


@pytest.fixture(autouse=True)
def _settings(home: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """One home for the module: all runs share its compile cache."""
    monkeypatch.setenv("CUDAL2_HOME", str(home))
    monkeypatch.setenv("CUDAL2_API_KEY", KEY)
    monkeypatch.setenv("CUDAL2_CHAT_SAMPLES", "1")
    monkeypatch.setenv("CUDAL2_CHAT_REPAIRS", str(len(SCRIPT)))
    monkeypatch.chdir(tmp_path)


Answer = Callable[..., str]


@pytest.fixture
def answer(capsys: pytest.CaptureFixture[str]) -> Answer:
    def run(*words: str, code: int = 0) -> str:
        ended = main([*words])
        said = capsys.readouterr()
        assert ended == code, said.err
        return said.out

    return run


def optimize(answer: Answer, server: ScriptedServer, out: Path, device: str = "none") -> str:
    """Starts a run of the author and returns its id."""
    words = [
        "optimize",
        "--shape",
        f"{TASK.m}x{TASK.n}x{TASK.k}",
        "--arch",
        "sm_90a",
        "--device",
        device,
        "--no-knowledge",
        "--json",
    ]
    chat = ["--policy", "chat", "--model", "test", "--base-url", server.base_url, "--budget", str(len(SCRIPT))]
    run_id: str = json.loads(answer(*words, *chat, "--out", str(out)))["run_id"]
    return run_id


def opened(home: Path) -> Store:
    return open_store(f"sqlite:///{home / 'trajectories.sqlite'}")


def statuses(steps: Sequence[Step]) -> list[str]:
    """Statuses of the search; the steps after it measure the best candidates again."""
    return [step.evaluation.status for step in steps[: len(SCRIPT)]]


def test_a_whole_run_that_executes_nothing_and_its_replay_without_a_server(answer: Answer, home: Path, tmp_path: Path) -> None:
    author = Author("built")
    with ScriptedServer(author) as server:
        run_id = optimize(answer, server, tmp_path / "out")
        assert not author.missing
        assert author.given == [turn.name for turn in SCRIPT]
        sent = len(server.requests)
    with opened(home) as store:
        steps, exchanges = store.steps(run_id), store.exchanges(run_id)
    assert statuses(steps) == BUILT
    assert {step.evaluation.verified_by for step in steps if isinstance(step.evaluation, Unmeasured)} == {"nothing"}
    assert [step.candidate.source for step in steps] == [turn.draft.source for turn in SCRIPT]
    rejected, assembler, compiler = (step.evaluation for step in steps[:3])
    assert isinstance(rejected, Rejected)
    assert rejected.rule == "include"
    assert isinstance(assembler, CompileFailed)
    assert "ptxas" in assembler.log
    assert isinstance(compiler, CompileFailed)
    assert "kernel.cu(" in compiler.log
    # Each repair names what it repairs, and each exchange the candidate that came of it.
    assert [step.candidate.origin.parents for step in steps[1:4]] == [(step.candidate.id,) for step in steps[:3]]
    assert [exchange.candidate_id for exchange in exchanges] == [step.candidate.id for step in steps]
    assert [exchange.prompt.id for exchange in exchanges] == [step.candidate.origin.prompt_hash for step in steps]
    assert [exchange.reply for exchange in exchanges] == [turn.text for turn in SCRIPT]
    assert sent == len(exchanges)
    check_what_shows_it(answer, run_id, steps, tmp_path)
    check_replay(answer, home, run_id, steps, tmp_path)
    assert not [
        path for path in [*home.rglob("*"), *tmp_path.rglob("*")] if path.is_file() and KEY.encode() in path.read_bytes()
    ]


@pytest.mark.slow
@pytest.mark.skipif(find_spec("cudal2_agent.sandbox.emulator._core") is None, reason="the emulator's core was not built here")
def test_without_a_gpu_the_emulator_shows_the_author_its_mistake(answer: Answer, home: Path, tmp_path: Path) -> None:
    author = Author("emulated")
    with ScriptedServer(author) as server:
        run_id = optimize(answer, server, tmp_path / "out", "emulator")
    assert not author.missing
    with opened(home) as store:
        steps, run = store.steps(run_id), store.run(run_id)
    assert statuses(steps) == EMULATED
    assert {step.evaluation.verified_by for step in steps if isinstance(step.evaluation, Unmeasured)} == {"emulator"}
    assert steps[4].candidate.origin.parents == (steps[3].candidate.id,)
    assert run.best_candidate_id in {step.candidate.id for step in steps[4 : len(SCRIPT)]}
    assert (
        "The emulator executed the kernel and found it right, some tests in part; its time is"
        in (tmp_path / "out" / "report.md").read_text()
    )


def check_what_shows_it(answer: Answer, run_id: str, steps: Sequence[Step], tmp_path: Path) -> None:
    assert "No candidate with a known time led" in answer("runs", "show", run_id, "--why")
    exported = tmp_path / "steps.jsonl"
    answer("trajectories", "export", run_id, "--out", str(exported))
    lines = [json.loads(line) for line in exported.read_text().splitlines()]
    assert [line["candidate"]["source"] for line in lines] == [step.candidate.source for step in steps]


def check_replay(answer: Answer, home: Path, run_id: str, steps: Sequence[Step], tmp_path: Path) -> None:
    """Without the server, the recorded replies lead to the same candidates."""
    words = ["optimize", "--replay", run_id, "--device", "none", "--no-knowledge", "--json", "--out", str(tmp_path / "again")]
    again = json.loads(answer(*words))["run_id"]
    assert again != run_id
    with opened(home) as store:
        repeated = store.steps(again)
    assert [step.candidate.id for step in repeated] == [step.candidate.id for step in steps]
    assert statuses(repeated) == BUILT


def test_results_and_counters_reach_the_author_where_there_are_any(
    answer: Answer, home: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def scripted(*, compile_options: CompileOptions, emit: Emit, **_: object) -> Machine:  # noqa: ARG001
        return Machine(compile_options)

    monkeypatch.setattr("cudal2_agent.agent.wiring.sandbox.open_sandbox", scripted)
    author = Author("profiled")
    with ScriptedServer(author) as server:
        run_id = optimize(answer, server, tmp_path / "out")
    assert not author.missing
    with opened(home) as store:
        steps = store.steps(run_id)
        run = store.run(run_id)
    assert statuses(steps) == EXECUTED
    wrong = steps[3].evaluation
    assert isinstance(wrong, Wrong)
    assert steps[4].candidate.origin.parents == (steps[3].candidate.id,)
    assert all(step.diagnosis and step.diagnosis.basis == "counters" for step in steps[4:7])
    assert run.best_candidate_id == steps[len(SCRIPT) - 1].candidate.id
    assert (tmp_path / "out" / "kernel.cu").read_text() == SCRIPT[-1].draft.source
    why = answer("runs", "show", run_id, "--why")
    assert re.search(rf"repairs: {steps[3].candidate.id[:8]}, wrong: exact/zero-one: \d+ of \d+ outputs are wrong", why)
    assert why.count("(counters): ") == len(steps[5 : len(SCRIPT)])


@pytest.mark.slow
@pytest.mark.skipif(find_spec("cudal2_agent.sandbox.emulator._core") is None, reason="the emulator's core was not built here")
def test_a_wrong_kernel_that_fools_the_gpu_is_refuted_by_the_emulator_and_mended(
    answer: Answer, home: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The wrong kernel is the fastest by far and near the roofline; the author repairs it from the emulator's report."""
    opened_machines: list[Fooled] = []

    def fooled(**given: Any) -> Fooled:
        opened_machines.append(Fooled(given["compile_options"], open_sandbox(**{**given, "device": "emulator"})))
        return opened_machines[0]

    monkeypatch.setattr("cudal2_agent.agent.wiring.sandbox.open_sandbox", fooled)
    author = Author("profiled")
    with ScriptedServer(author) as server:
        run_id = optimize(answer, server, tmp_path / "out")
    assert not author.missing
    with opened(home) as store:
        steps, run = store.steps(run_id), store.run(run_id)
    assert statuses(steps) == EXECUTED
    wrong = steps[3]
    assert isinstance(wrong.evaluation, Wrong)
    assert wrong.evaluation.test.tier == WITNESS
    assert wrong.evaluation.refused is not None
    assert (median_us(wrong.evaluation.refused.timing), wrong.reward) == (FOOLED_US, FLOOR)
    assert steps[4].candidate.origin.parents == (wrong.candidate.id,)
    assert opened_machines[0].witnessed == [step.candidate.id for step in steps[3 : len(SCRIPT)]], "each led, each once"
    assert run.best_candidate_id == steps[len(SCRIPT) - 1].candidate.id
    assert all(step.reward is not None for step in steps)
    report = (tmp_path / "out" / "report.md").read_text()
    assert "## Refused by the second witness" in report
    assert "Second witness: proved by the emulator too, in part." in report
    kept = Measured.model_validate_json((tmp_path / "out" / "evaluation.json").read_text())
    assert kept.witness is not None
    assert kept.witness.status == "in-part"
    assert "witness: proved by the emulator too, in part" in answer("runs", "show", run_id)
    assert json.loads(answer("runs", "show", run_id, "--json"))["best"]["witness"]["status"] == "in-part"


def test_the_run_ends_when_the_author_is_not_told_what_it_needs(answer: Answer, home: Path, tmp_path: Path) -> None:
    """A script for a machine with a GPU on one without: it waits for a wrong result that nothing here reports."""
    author = Author("executed")
    with ScriptedServer(author) as server:
        run_id = optimize(answer, server, tmp_path / "out")
    assert author.given == [turn.name for turn in SCRIPT[:4]]
    assert author.missing
    with opened(home) as store:
        exchanges = store.exchanges(run_id)
        assert store.run(run_id).status == "finished"
    dropped = [exchange for exchange in exchanges if exchange.candidate_id is None]
    assert dropped
    assert all("no code block" in exchange.problem for exchange in dropped)
