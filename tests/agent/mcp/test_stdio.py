"""`cudal2-agent mcp` as a real child process: the SDK's client over its stdin and stdout, real builder and emulator."""

import json
import os
import signal
import subprocess
import sys
import time
from collections.abc import Awaitable, Callable
from pathlib import Path
from typing import Any

import anyio
import pytest

pytest.importorskip("mcp", reason="the extra mcp is not installed")
pytest.importorskip("cudal2_agent.sandbox.emulator._core", reason="the emulator's core was not built here")

from mcp.client.client import Client
from mcp.client.stdio import StdioServerParameters, stdio_client

from cudal2_agent.agent.cli.main import main
from cudal2_agent.contract.records.exchange import Exchange
from cudal2_agent.contract.records.task import GemmTask
from cudal2_agent.contract.records.trajectory import RunRecord, Step
from cudal2_agent.store.store import open_store
from tests.agent.bench.models.scripted_model import example, shifted

ROOT = Path(__file__).parents[3]
TASK = GemmTask(m=64, n=64, k=64)
RIGHT = example(TASK)
WRONG = shifted(RIGHT)
ENDLESS = RIGHT.replace(
    "  const int lane", "  while (*reinterpret_cast<volatile const unsigned short*>(a) != 7) {}\n  const int lane"
)
VERB = ["-m", "cudal2_agent.agent.cli.main", "mcp"]
NEW = [*VERB, "--shape", TASK.shape, "--arch", "sm_90a", "--device", "emulator", "--no-knowledge"]


@pytest.fixture
def surroundings(tmp_path: Path) -> dict[str, str]:
    kept = {name: os.environ[name] for name in ("PATH", "HOME", "LD_LIBRARY_PATH") if name in os.environ}
    return {**kept, "PYTHONPATH": os.pathsep.join([str(ROOT), *sys.path]), "CUDAL2_HOME": str(tmp_path)}


def talk(words: list[str], surroundings: dict[str, str], what: Callable[[Client], Awaitable[None]]) -> None:
    server = StdioServerParameters(command=sys.executable, args=words, env=surroundings, cwd=surroundings["CUDAL2_HOME"])

    async def connected() -> None:
        async with Client(stdio_client(server), mode="legacy") as client:
            await what(client)

    anyio.run(connected)


async def said(client: Client, name: str, **arguments: str) -> str:
    answer = await client.call_tool(name, arguments)
    return str(answer.content[0].text)  # type: ignore[union-attr]


def stored(home: Path) -> tuple[RunRecord, list[Step], list[Exchange]]:
    with open_store(f"sqlite:///{home / 'trajectories.sqlite'}") as store:
        [run] = store.runs()
        return run, store.steps(run.run_id), store.exchanges(run.run_id)


@pytest.mark.slow
def test_an_agent_s_session_is_a_run_that_every_reader_shows(
    tmp_path: Path, surroundings: dict[str, str], capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    async def what(client: Client) -> None:
        assert "D = A·B with M = 64" in await said(client, "read_task")
        assert "wrong result in test exact/" in await said(client, "verify_kernel", kernel=WRONG)
        assert "b1: 64x64x64" in await said(client, "best_known")
        handed = await said(client, "submit_kernel", kernel=RIGHT, idea="The example.")
        assert "k2: it passed all tests on the emulator." in handed
        assert "The run has ended: the agent finished." in await said(client, "finish")

    talk(NEW, surroundings, what)
    run, [step], exchanges = stored(tmp_path)
    assert (run.status, run.policy, run.best_candidate_id) == ("finished", "mcp", step.candidate.id)
    assert len(exchanges) == 5
    assert (tmp_path / "runs" / run.run_id / "kernel.cu").read_text() == RIGHT
    monkeypatch.setenv("CUDAL2_HOME", str(tmp_path))
    for words in (["runs", "show", run.run_id], ["trajectories", "show", run.run_id], ["trajectories", "verify"]):
        assert main(words) == 0, capsys.readouterr().err
    report = (tmp_path / "runs" / run.run_id / "report.md").read_text()
    assert "mcp" in report
    for kind in ("sft", "grpo"):
        out = tmp_path / f"{kind}.jsonl"
        assert main(["trajectories", "export", "--format", kind, "--out", str(out)]) == 0, capsys.readouterr().err


@pytest.mark.slow
def test_a_server_that_is_killed_within_a_call_resumes_its_run(tmp_path: Path, surroundings: dict[str, str]) -> None:
    lines: list[dict[str, Any]] = [
        {"method": "initialize", "id": 1, "params": {"protocolVersion": "2025-06-18", "capabilities": {}, "clientInfo": {}}},
        {"method": "notifications/initialized"},
        {"method": "tools/call", "id": 2, "params": {"name": "submit_kernel", "arguments": {"kernel": RIGHT}}},
        {"method": "tools/call", "id": 3, "params": {"name": "verify_kernel", "arguments": {"kernel": ENDLESS}}},
    ]
    lines[0]["params"]["clientInfo"] = {"name": "test", "version": "1"}
    hostile = ["not JSON", '{"jsonrpc": "2.0", "id": 8, "method": "ping", "params": {"x": "\\ud800"}}', "", "[]", "7", "\0"]
    words = [sys.executable, *NEW, "--call-seconds", "40"]
    process = subprocess.Popen(
        words, env=surroundings, cwd=tmp_path, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True, start_new_session=True
    )
    assert process.stdin is not None
    assert process.stdout is not None
    for line in (*hostile, *(json.dumps({"jsonrpc": "2.0", **one}) for one in lines)):
        process.stdin.write(line + "\n")
    process.stdin.flush()
    answers = (json.loads(line) for line in process.stdout)  # nothing but the protocol is on stdout
    answered = next(one for one in answers if one.get("id") == 2)
    deadline = time.monotonic() + 60
    while not any(call.name == "verify_kernel" for one in stored(tmp_path)[2] for call in one.calls):
        assert time.monotonic() < deadline
        time.sleep(0.1)
    os.killpg(process.pid, signal.SIGKILL)
    process.wait()
    run, [step], exchanges = stored(tmp_path)
    assert (run.status, len(exchanges), exchanges[1].results) == ("running", 2, ())
    assert "k1: it passed all tests" in str(answered)

    async def what(client: Client) -> None:
        handed = await said(client, "submit_kernel", kernel="k1")
        assert "It is the best kernel of the run." in handed
        assert "Left: 397 of 400 calls" in handed
        assert "The run has ended" in await said(client, "finish")

    talk([*VERB, "--resume", run.run_id], surroundings, what)
    run, steps, exchanges = stored(tmp_path)
    assert (run.status, [one.candidate.id for one in steps]) == ("finished", [step.candidate.id])
    assert [len(one.results) for one in exchanges] == [1, 0, 1, 1]


@pytest.mark.slow
@pytest.mark.parametrize(
    ("words", "says"),
    [
        ([*VERB, "--resume", "no-such-run"], "no-such-run"),
        ([*VERB, "--shape", "64x64x64", "--device", "cuda:7"], "error:"),
    ],
)
def test_a_run_that_cannot_be_opened_ends_the_server_with_one_line(
    surroundings: dict[str, str], words: list[str], says: str
) -> None:
    with subprocess.Popen(
        [sys.executable, *words], env=surroundings, stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=-1
    ) as it:
        assert it.wait(60) == 2
        assert it.stderr is not None
        assert it.stdout is not None
        error = it.stderr.read().decode()
        assert it.stdout.read() == b""
    assert says in error
    assert len(error.strip().splitlines()) == 1, error


@pytest.mark.parametrize(
    ("words", "says"),
    [
        (["mcp"], "--shape is missing"),
        (["mcp", "--shape", "64x64x64", "--problem", "x.py"], "name two tasks"),
        (["mcp", "--shape", "64x64x64", "--resume", "x"], "leave out --shape"),
        (["mcp", "--shape", "64x64x64", "--calls", "0"], "chat_tool_calls"),
    ],
)
def test_wrong_flags_are_one_line(capsys: pytest.CaptureFixture[str], words: list[str], says: str) -> None:
    assert main(words) == 2
    told = capsys.readouterr()
    assert told.out == ""
    assert says in told.err


def test_without_the_package_the_verb_says_how_to_install_it(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("cudal2_agent.agent.cli.agents.verb.find_spec", lambda _: None)
    assert main(["mcp", "--shape", "64x64x64"]) == 2
    assert "pip install 'cudal2-agent[mcp]'" in capsys.readouterr().err
