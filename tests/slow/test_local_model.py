"""Whole `optimize` runs against a real language model behind a real server. The model is too small to write a kernel.

The tests cover everything around a model: runs end as documented, lose no record, count exactly and keep the key secret.
"""

import json
import os
import subprocess
import sys
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest

from cudal2_agent.contract.records.exchange import Exchange
from cudal2_agent.contract.records.trajectory import Step
from cudal2_agent.store.store import open_store
from tests.slow.smollm2 import ModelServer, missing, serving, unpack

pytestmark = [
    pytest.mark.long,
    pytest.mark.timeout(3600),
    pytest.mark.skipif(bool(missing()), reason=f"not installed: {', '.join(missing())}; see docs/guide/servers.md"),
]
KEY = "sk-a-key-that-is-to-be-found-nowhere-0123456789"
REPLY_TOKENS = 64
SAMPLES = 2
CAP = 20_000  # tokens: enough for one round with one correction per reply
ROOT = Path(__file__).parents[2]


@dataclass(frozen=True)
class Run:
    """A finished command and its home folder."""

    code: int
    out: str
    err: str
    home: Path

    @property
    def answer(self) -> dict[str, Any]:
        answer: dict[str, Any] = json.loads(self.out)
        return answer

    @property
    def exchanges(self) -> list[Exchange]:
        with open_store(f"sqlite:///{self.home / 'trajectories.sqlite'}") as store:
            return store.exchanges(self.answer["run_id"])

    @property
    def steps(self) -> list[Step]:
        with open_store(f"sqlite:///{self.home / 'trajectories.sqlite'}") as store:
            return store.steps(self.answer["run_id"])


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[ModelServer]:
    folder = tmp_path_factory.mktemp("smollm2")
    with serving(unpack(folder / "model"), folder / "server.log") as running:
        yield running


@pytest.fixture(scope="module")
def alone(server: ModelServer, tmp_path_factory: pytest.TempPathFactory) -> Run:
    """A run with the model as only policy."""
    return optimize(server, tmp_path_factory.mktemp("alone"), "chat", "--tokens", str(CAP))


@pytest.fixture(scope="module")
def shared(server: ModelServer, tmp_path_factory: pytest.TempPathFactory) -> Run:
    """A run of the portfolio of model and schedule policy."""
    return optimize(server, tmp_path_factory.mktemp("shared"), "portfolio", "--budget", "8")


def command(home: Path, *arguments: str) -> Run:
    """The command line in its own process, with settings for the model's small context."""
    settings = {
        "CUDAL2_HOME": str(home),
        "CUDAL2_API_KEY": KEY,
        "CUDAL2_ROUND_SIZE": "4",
        "CUDAL2_CHAT_SAMPLES": str(SAMPLES),
        "CUDAL2_CHAT_PARALLEL": str(SAMPLES),
        "CUDAL2_CHAT_TURNS": "1",
        "CUDAL2_CHAT_PROMPT_TOKENS": "2048",
        "CUDAL2_CHAT_REPLY_TOKENS": str(REPLY_TOKENS),
        "CUDAL2_CHAT_FIRST_BYTE_S": "900",
        "CUDAL2_CHAT_REPLY_S": "1200",
    }
    inherited = {name: value for name, value in os.environ.items() if not name.startswith(("CUDAL2_", "OPENAI_"))}
    ended = subprocess.run(
        [sys.executable, "-m", "cudal2_agent.agent.cli.main", *arguments],
        env={**inherited, **settings, "PYTHONPATH": str(ROOT)},
        cwd=home,
        capture_output=True,
        text=True,
        timeout=3000,
        check=False,
    )
    return Run(ended.returncode, ended.stdout, ended.stderr, home)


def optimize(server: ModelServer, home: Path, policy: str, *more: str) -> Run:
    task = ["--shape", "512x512x512", "--arch", "sm_90a", "--device", "none", "--no-knowledge", "--minutes", "40", "--json"]
    chat = ["--policy", policy, "--model", server.model, "--base-url", server.base_url]
    return command(home, "optimize", *task, *chat, *more)


def check_exchanges(run: Run) -> None:
    """Invariants of every exchange with this server and model."""
    exchanges = run.exchanges
    assert exchanges
    assert len({exchange.place for exchange in exchanges}) == len(exchanges)
    for exchange in exchanges:
        assert exchange.status in ("complete", "truncated"), exchange.problem
        assert exchange.reply
        assert exchange.problem, "no kernel fits in so few tokens"
        assert exchange.candidate_id is None
        assert exchange.usage.counted == "server"
        assert exchange.usage.prompt_tokens > 500
        assert 0 < exchange.usage.completion_tokens <= REPLY_TOKENS
        assert (exchange.status == "truncated") == (exchange.usage.completion_tokens == REPLY_TOKENS)
        assert exchange.seconds > 0


def test_a_model_that_writes_no_kernel_ends_the_run_with_one_line_and_code_1(alone: Run) -> None:
    assert alone.code == 1, alone.err
    assert alone.answer["best"] is None
    assert alone.answer["steps"] == 0
    assert alone.answer["status"] == "finished"
    assert f"the cap of {CAP} tokens is reached" in alone.answer["reason"]
    assert "Traceback" not in alone.err


def test_every_reply_is_kept_with_its_count_and_why_nothing_came_of_it(alone: Run) -> None:
    check_exchanges(alone)
    openings = {exchange.place: exchange for exchange in alone.exchanges if exchange.turn == 0}
    sent_back = [exchange for exchange in alone.exchanges if exchange.turn == 1]
    assert sent_back, "a reply without a kernel is sent back once"
    for exchange in sent_back:
        opening = openings[exchange.round, exchange.sample, 0]
        assert exchange.prompt.messages[: len(opening.prompt.messages)] == opening.prompt.messages
        assert exchange.prompt.messages[len(opening.prompt.messages)].role == "assistant"


def test_the_cap_on_tokens_holds_by_the_servers_own_count(alone: Run) -> None:
    assert sum(exchange.usage.tokens for exchange in alone.exchanges) <= CAP
    assert f"the cap of {CAP} tokens is reached" in alone.err


def test_samples_of_one_prompt_differ(alone: Run) -> None:
    first_turns = [exchange for exchange in alone.exchanges if exchange.round == 1 and exchange.turn == 0]
    assert len({exchange.prompt.id for exchange in first_turns}) == 1
    assert len({exchange.reply for exchange in first_turns}) == SAMPLES


@pytest.mark.parametrize("name", ["alone", "shared"])
def test_why_tells_the_account_of_the_run(name: str, request: pytest.FixtureRequest) -> None:
    run: Run = request.getfixturevalue(name)
    shown = command(run.home, "runs", "show", run.answer["run_id"], "--why", "--json")
    assert shown.code == 0, shown.err
    replies = shown.answer["why"]["replies"]
    assert replies["requests"] == len(run.exchanges)
    assert replies["prompt_tokens"] == sum(exchange.usage.prompt_tokens for exchange in run.exchanges)
    assert replies["reply_tokens"] == sum(exchange.usage.completion_tokens for exchange in run.exchanges)
    assert replies["estimated"] == 0
    assert sum(replies["dropped"].values()) == len(run.exchanges)
    assert command(run.home, "runs", "show", run.answer["run_id"], "--why").out


@pytest.mark.parametrize("name", ["alone", "shared"])
def test_the_running_account_ends_at_the_sum_of_what_is_kept(name: str, request: pytest.FixtureRequest) -> None:
    run: Run = request.getfixturevalue(name)
    told = [
        int(line.rsplit("; ", 1)[1].split(" ")[0].replace(",", "")) for line in run.err.splitlines() if "tokens so far" in line
    ]
    assert len(told) == len(run.exchanges)
    assert told == sorted(told)
    assert told[-1] == sum(exchange.usage.tokens for exchange in run.exchanges)


def test_a_run_shared_with_the_schedule_policy_finds_a_kernel(shared: Run) -> None:
    assert shared.code == 0, shared.err
    assert shared.answer["best"] is not None
    assert not shared.answer["measured"]
    assert {step.candidate.origin.policy for step in shared.steps} == {"schedule"}
    assert (Path(shared.answer["out"]) / "kernel.cu").is_file()
    check_exchanges(shared)


def test_a_run_replays_without_its_server(alone: Run) -> None:
    """The same store, with an address on which nothing listens."""
    nowhere = "http://127.0.0.1:9/v1"
    again = command(alone.home, "optimize", "--replay", alone.answer["run_id"], "--base-url", nowhere, "--json")
    assert again.code == 1, again.err
    assert again.answer["run_id"] != alone.answer["run_id"]
    said = [(exchange.place, exchange.reply, exchange.problem) for exchange in again.exchanges]
    assert sorted(said) == sorted((exchange.place, exchange.reply, exchange.problem) for exchange in alone.exchanges)


@pytest.mark.parametrize("name", ["alone", "shared"])
def test_the_key_is_nowhere(name: str, request: pytest.FixtureRequest) -> None:
    run: Run = request.getfixturevalue(name)
    assert KEY not in run.out + run.err
    files = [path for path in run.home.rglob("*") if path.is_file()]
    assert files
    assert [path for path in files if KEY.encode() in path.read_bytes()] == []
