"""Benches through the real command line: a recorded one is replayed without a server, and a killed one goes on."""

import gzip
import json
from collections.abc import Callable
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import pytest

from cudal2_agent.agent.bench.models import bench_runs
from cudal2_agent.agent.bench.models.bench_tasks import bench_tasks, choose_tasks
from cudal2_agent.agent.cli.main import main
from cudal2_agent.contract.records.exchange import Exchange
from cudal2_agent.contract.settings.run_settings import RunSettings
from cudal2_agent.sandbox.local import LocalSandbox
from cudal2_agent.store.store import open_store
from tests.agent.bench.models.scripted_model import FIRST, NEVER, RECORDING, REPAIRED, ScriptedModel
from tests.doubles import run_record
from tests.doubles.chat_server import ScriptedServer

pytestmark = pytest.mark.skipif(
    find_spec("cudal2_agent.sandbox.emulator._core") is None, reason="the emulator's core was not built here"
)
RECORDED: dict[str, list[Any]] = json.loads(gzip.decompress(RECORDING.read_bytes()))
QUICK = ("tiny", "tiny-f16", "odd", "part-of-a-wave", "long-k", "ampere")


@pytest.fixture(scope="module")
def home(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A home whose store holds the recorded bench, shared by all tests for its compile cache."""
    folder = tmp_path_factory.mktemp("home")
    with open_store(f"sqlite:///{folder / 'trajectories.sqlite'}") as store:
        for one in bench_tasks().tasks:
            settings = RunSettings(model="scripted", device="emulator", use_knowledge=False)
            store.start_run(
                run_record(f"recorded-{one.name}", task=one.task, policy="chat", settings=settings, status="finished")
            )
            for exchange in RECORDED[one.name]:
                store.record_exchange(f"recorded-{one.name}", Exchange.model_validate(exchange))
    return folder


@pytest.fixture
def bench(
    home: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> Callable[..., tuple[dict[str, Any], str]]:
    monkeypatch.setenv("CUDAL2_HOME", str(home))
    monkeypatch.chdir(tmp_path)

    def run(*words: str, code: int = 0) -> tuple[dict[str, Any], str]:
        ended = main(["model-bench", *words, "--results", str(tmp_path / "results.jsonl"), "--json"])
        said = capsys.readouterr()
        assert ended == code, said.err
        return (json.loads(said.out)["benches"][0] if code == 0 else {}), said.err

    return run


def check(found: dict[str, Any], names: tuple[str, ...]) -> None:
    """The figures are those of the recorded replies."""
    rows = {row["name"]: row for row in found["tasks"]}
    assert list(rows) == list(names)
    for name, row in rows.items():
        assert (row["first"], row["right"]) == (name in FIRST, name != NEVER), row["outcome"]
        assert row["replies"] == REPAIRED.get(name, 3 if name == NEVER else 1)
        exchanges = RECORDED[name]
        assert row["prompt_tokens"] == sum(one["usage"]["prompt_tokens"] for one in exchanges)
        assert row["reply_tokens"] == sum(one["usage"]["completion_tokens"] for one in exchanges)
        assert row["yardstick"]["schedule"]["basis"] == "predicted"
        assert row["time"] is None or row["time"]["basis"] == "predicted"
        assert row["device"].startswith("emulator (")
    assert rows[NEVER]["outcome"].startswith("compile failed: ")
    assert rows["tiny-f16"]["tool_calls"] == 3
    totals = found["totals"]
    assert (totals["first"], totals["right"]) == (len(set(names) & set(FIRST)), len(names) - 1)
    assert (totals["tool_calls"], totals["cost"], totals["measured"]) == (3, 0.0, 0)


@pytest.mark.slow
def test_a_recorded_bench_replays_without_a_server_and_without_its_tools(
    bench: Callable[..., Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    def unwanted(*_: object, **__: object) -> None:
        pytest.fail("a recorded tool ran again")

    monkeypatch.setattr(LocalSandbox, "witness", unwanted)
    found, said = bench("--replay", "recorded", "--tasks", ",".join(QUICK))
    check(found, QUICK)
    assert "task 6 of 6, ampere: 512x512x256" in said


@pytest.mark.long
def test_the_whole_recorded_bench_replays(bench: Callable[..., Any]) -> None:
    found, _ = bench("--replay", "recorded")
    check(found, tuple(one.name for one in bench_tasks().tasks))


def asked(server: ScriptedServer, tasks: str) -> list[str]:
    return ["--model", "test", "--base-url", server.base_url, "--device", "emulator", "--no-knowledge", "--tasks", tasks]


@pytest.mark.slow
def test_a_killed_bench_goes_on_with_what_is_left(bench: Callable[..., Any], monkeypatch: pytest.MonkeyPatch) -> None:
    """The first one is killed while its second task is asked for; the second asks for that task only."""
    model, whole = ScriptedModel(), bench_runs.open_policy
    tiny, odd = ((one.task.m, one.task.n, one.task.k) for one in choose_tasks(["tiny", "odd"]))

    def killed(*given: Any) -> Any:
        if len(model.asked):
            raise KeyboardInterrupt
        return whole(*given)

    with ScriptedServer(model) as server:
        monkeypatch.setattr(bench_runs, "open_policy", killed)
        bench(*asked(server, "tiny,odd"), code=130)
        assert model.asked == {tiny: 1}
        monkeypatch.setattr(bench_runs, "open_policy", whole)
        found, _ = bench(*asked(server, "tiny,odd"))
        assert model.asked == {tiny: 1, odd: 2}
        assert [(row["first"], row["right"]) for row in found["tasks"]] == [(True, True), (False, True)]
        again, _ = bench(*asked(server, "tiny"))
        assert model.asked[tiny] > 1, "a finished bench is not continued: the same command starts the next one"
    assert (found["name"][-2:], again["name"][-2:]) == ("-1", "-2")


def test_a_cap_ends_a_bench_before_a_task_that_has_no_room(bench: Callable[..., Any]) -> None:
    with ScriptedServer(ScriptedModel()) as server:
        found, said = bench(*asked(server, "tiny,odd,part-of-a-wave"), "--tokens", "41000")
    assert [row["name"] for row in found["tasks"]] == ["tiny"]
    assert "the cap of 41000 tokens leaves no room for another task; 2 tasks were not run" in said.replace("\n  ", " ")
