"""Whole runs over HTTP whose replies are patches and schedules: real command line, graph, store and builder."""

import difflib
import json
import re
from importlib.util import find_spec
from pathlib import Path

import pytest

from cudal2_agent.agent.cli.main import main
from cudal2_agent.contract.records.exchange import Exchange
from cudal2_agent.contract.records.task import Arch, GemmTask
from cudal2_agent.contract.records.trajectory import Step
from cudal2_agent.policies.chat.tokens import estimate_tokens
from cudal2_agent.policies.schedule.families.registry import rewrite
from cudal2_agent.store.store import open_store
from tests.author.script import SCRIPT, TASK
from tests.doubles.chat_server import Request, ScriptedServer, Text

TURNS = {turn.name: turn for turn in SCRIPT}


@pytest.fixture(autouse=True)
def _settings(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("CUDAL2_HOME", str(tmp_path / "home"))
    monkeypatch.setenv("CUDAL2_API_KEY", "sk-test-0123456789")
    monkeypatch.setenv("CUDAL2_CHAT_SAMPLES", "1")
    monkeypatch.chdir(tmp_path)


def run(capsys: pytest.CaptureFixture[str], *words: str) -> str:
    assert main(["optimize", "--json", *words]) == 0, capsys.readouterr().err
    run_id: str = json.loads(capsys.readouterr().out)["run_id"]
    return run_id


def stored(run_id: str) -> tuple[list[Step], list[Exchange]]:
    with open_store(f"sqlite:///{Path('home/trajectories.sqlite').resolve()}") as store:
        return list(store.steps(run_id)), store.exchanges(run_id)


def chat(server: ScriptedServer, *words: str) -> list[str]:
    return ["--policy", "chat", "--model", "test", "--base-url", server.base_url, "--no-knowledge", *words]


def patch_of(before: str, after: str) -> str:
    """A reply with the difference of two kernels, without usable line numbers."""
    lines = difflib.unified_diff(before.splitlines(), after.splitlines(), "failed", "mended", n=2, lineterm="")
    body = "\n".join("@@ -1 +1 @@" if line.startswith("@@") else line for line in lines)
    return f"## Analysis\nA missing cast.\n\n## Design\nThe pointer as bytes. No more.\n\n## Code\n```diff\n{body}\n```\n"


def examples(prompt: str) -> list[dict[str, object]]:
    return [json.loads(line) for line in re.findall(r"^[\d.]+ us (\{.*\})$", prompt, re.MULTILINE)]


def test_a_file_a_patch_of_it_and_schedules_in_one_run(capsys: pytest.CaptureFixture[str]) -> None:
    whole, mended = TURNS["03_compile_error"], TURNS["04_wrong_result"]
    patch = patch_of(whole.draft.source, mended.draft.source)

    def schedules(request: Request) -> Text:
        return Text("Two of the best predicted.\n```json\n" + json.dumps(examples(request.prompt)[:2]) + "\n```\n")

    replies = iter([lambda _: Text(whole.text), lambda _: Text(patch), schedules])
    shape = ["--shape", f"{TASK.m}x{TASK.n}x{TASK.k}", "--arch", "sm_90a", "--device", "none"]
    with ScriptedServer(lambda request: next(replies)(request)) as server:
        run_id = run(capsys, *shape, *chat(server, "--budget", "4"))
    steps, exchanges = stored(run_id)
    assert [step.evaluation.status for step in steps] == ["compile_failed", "unmeasured", "unmeasured", "unmeasured"]
    assert steps[1].candidate.source == mended.draft.source
    assert steps[1].candidate.origin.parents == (steps[0].candidate.id,)
    assert [step.candidate.origin.trusted_writer for step in steps] == [False, False, True, True]
    assert [exchange.candidate_ids for exchange in exchanges] == [
        (steps[0].candidate.id,),
        (steps[1].candidate.id,),
        (steps[2].candidate.id, steps[3].candidate.id),
    ]
    sizes = [estimate_tokens(exchange.reply) for exchange in exchanges]
    assert sizes[0] > 3 * sizes[1] > 3 * sizes[2] / 2
    again = run(capsys, "--replay", run_id)
    assert [step.candidate.id for step in stored(again)[0]] == [step.candidate.id for step in steps]


@pytest.mark.skipif(find_spec("cudal2_agent.sandbox.emulator._core") is None, reason="the emulator's core was not built here")
def test_a_model_that_only_names_schedules_gets_proved_kernels(capsys: pytest.CaptureFixture[str]) -> None:
    """The author knows nothing but the prompt: it copies the examples, the slowest predicted first."""

    def author(request: Request) -> Text:
        *_, slower, slowest = found = examples(request.prompt)
        return Text(json.dumps([slowest, slower] if "# What was tried" not in request.prompt else found[0]))

    with ScriptedServer(author) as server:
        shape = ["--shape", "64x64x64", "--arch", "sm_90a", "--device", "emulator", "--replies", "schedule"]
        run_id = run(capsys, *shape, *chat(server, "--budget", "3"))
        prompts = [request.prompt for request in server.requests]
    steps, exchanges = stored(run_id)
    assert [step.evaluation.verified_by for step in steps] == ["emulator"] * 3
    for step in steps:
        again = rewrite(step.candidate, GemmTask(m=64, n=64, k=64, arch=Arch.SM_90A))
        assert again is not None
        assert again.source == step.candidate.source
    assert max(map(len, prompts)) < 8000
    assert max(estimate_tokens(exchange.reply) for exchange in exchanges) <= 120
    assert "# What was tried" in prompts[-1]
