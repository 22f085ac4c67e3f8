"""Whole runs in which a model calls tools: real command line, HTTP, builder and emulator."""

import json
from collections.abc import Callable
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import pytest

from cudal2_agent.agent.cli.main import main
from cudal2_agent.agent.wiring.run_workbench import RunWorkbench
from cudal2_agent.contract.records.exchange import Exchange
from cudal2_agent.contract.records.task import GemmTask
from cudal2_agent.store.store import open_store
from tests.agent.bench.models.scripted_model import example, shifted
from tests.doubles.chat_server import Calls, Request, ScriptedServer, Text

pytestmark = pytest.mark.skipif(
    find_spec("cudal2_agent.sandbox.emulator._core") is None, reason="the emulator's core was not built here"
)
TASK = GemmTask(m=64, n=64, k=64)
RIGHT = example(TASK)
WRONG = shifted(RIGHT)
ENDLESS = RIGHT.replace(
    "  const int lane", "  while (*reinterpret_cast<volatile const unsigned short*>(a) != 7) {}\n  const int lane"
)
WHOLE = [
    Calls(("verify_kernel", {"kernel": WRONG})),
    Calls(
        ("verify_kernel", {"kernel": RIGHT}), ("predict_time", {"kernel": "k2"}), ("search_knowledge", {"question": "wgmma"})
    ),
    Text("## Design\nChecked by tools. More.\n\n## Code\nCOMMIT k2\n"),
]


@pytest.fixture(scope="module")
def home(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("home")


@pytest.fixture(autouse=True)
def _settings(home: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("CUDAL2_HOME", str(home))
    monkeypatch.setenv("CUDAL2_CHAT_SAMPLES", "1")
    monkeypatch.chdir(tmp_path)


Answer = Callable[..., dict[str, Any]]


@pytest.fixture
def answer(capsys: pytest.CaptureFixture[str]) -> Answer:
    def run(*words: str, code: int = 0) -> dict[str, Any]:
        ended = main([*words, "--json"])
        said = capsys.readouterr()
        assert ended == code, said.err
        return json.loads(said.out) if said.out.startswith("{") else {}

    return run


def command(server: ScriptedServer) -> list[str]:
    words = ["optimize", "--shape", TASK.shape, "--arch", "sm_90a", "--device", "emulator", "--no-knowledge"]
    return [*words, "--policy", "chat", "--model", "test", "--base-url", server.base_url, "--budget", "1"]


def stored(home: Path, run_id: str) -> list[Exchange]:
    with open_store(f"sqlite:///{home / 'trajectories.sqlite'}") as store:
        return store.exchanges(run_id)


def tool_messages(request: Request) -> list[str]:
    return [message["content"] for message in request.body["messages"] if message["role"] == "tool"]


def test_a_model_uses_the_tools_and_its_run_replays_without_them(
    answer: Answer, home: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    with ScriptedServer(WHOLE) as server:
        done = answer(*command(server))
        wrong, right, predicted, found = tool_messages(server.requests[2])
    assert "wrong result in test exact/" in wrong
    assert "k2: it passed all tests on the emulator." in right
    assert predicted.startswith("k2: ")
    assert found.startswith("nothing was found")
    exchanges = stored(home, done["run_id"])
    assert [len(one.results) for one in exchanges] == [1, 3, 0]
    assert exchanges[-1].candidate_id == done["best"]["candidate_id"]

    def unwanted(*_: object) -> None:
        pytest.fail("a recorded tool ran again")

    for tool in ("compile", "verify", "predict", "search"):
        monkeypatch.setattr(RunWorkbench, tool, unwanted)
    again = answer("optimize", "--replay", done["run_id"])
    assert again["best"]["candidate_id"] == done["best"]["candidate_id"]
    assert [one.results for one in stored(home, again["run_id"])] == [one.results for one in exchanges]


def test_a_run_that_is_killed_in_a_tool_repeats_neither_request_nor_finished_tool(
    answer: Answer, home: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    verify, used = RunWorkbench.verify, []

    def killed(bench: RunWorkbench, *given: Any) -> Any:
        used.append(given[0].source)
        if len(used) == 2:
            raise KeyboardInterrupt
        return verify(bench, *given)

    with ScriptedServer(WHOLE) as server:
        monkeypatch.setattr(RunWorkbench, "verify", killed)
        answer(*command(server), code=130)
        assert len(server.requests) == 2
        with open_store(f"sqlite:///{home / 'trajectories.sqlite'}") as store:
            [run_id] = [run.run_id for run in store.runs() if run.status == "interrupted"]
        done = answer("runs", "resume", run_id)
        assert len(server.requests) == 3
    assert used == [WRONG, RIGHT, RIGHT]
    assert done["best"]["candidate_id"] == stored(home, run_id)[-1].candidate_id


def test_an_endless_kernel_ends_with_the_time_of_its_tool(answer: Answer, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("CUDAL2_CHAT_TOOL_S", "3")
    script = [Calls(("verify_kernel", {"kernel": ENDLESS})), Text(f"## Code\n```cuda\n{RIGHT}```\n")]
    with ScriptedServer(script) as server:
        answer(*command(server))
        [said] = tool_messages(server.requests[1])
    assert "did not end" in said or "was stopped after 3 s" in said or "deadlock" in said, said


def test_a_run_without_tools_offers_none(answer: Answer) -> None:
    with ScriptedServer([Text(f"## Code\n```cuda\n{RIGHT}```\n")]) as server:
        answer(*command(server), "--chat-tools", "off")
        assert "tools" not in server.requests[0].body
