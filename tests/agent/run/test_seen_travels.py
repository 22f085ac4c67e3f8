"""What a model saw and said travels with its run: hits with marks, counters, rounds, prompts as they were sent."""

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from cudal2_agent.agent.run.dependencies import Dependencies
from cudal2_agent.agent.run.lifecycle import start_run
from cudal2_agent.agent.wiring.run_workbench import RunWorkbench
from cudal2_agent.contract.records.exchange import Prompt, ToolCall
from cudal2_agent.contract.records.trajectory import Trajectory
from cudal2_agent.contract.settings.settings import Settings
from cudal2_agent.policies.chat.account import Account
from cudal2_agent.policies.chat.policy import ChatPolicy
from cudal2_agent.policies.chat.prompts.composition import Prompts
from cudal2_agent.policies.chat.server.chat_server import ExchangePlace, Reply
from cudal2_agent.policies.exports.dataset import export_dataset
from cudal2_agent.policies.exports.flat_table import table_rows
from cudal2_agent.policies.exports.formats import ExportOptions
from cudal2_agent.store.importing import import_files
from cudal2_agent.store.packing import zstd
from cudal2_agent.store.steps import export_steps, to_line
from cudal2_agent.store.store import RunExchanges, open_store
from cudal2_agent.store.sweep.sweep_files import export_sweep
from tests.agent.mcp.driving import Driven, kernel
from tests.doubles import TASK, ScriptedRetriever, ScriptedSandbox, diagnose, explain
from tests.policies.chat.conversing import AnsweringServer, ended, options

RUN = "seen"
OTHERS = Prompts(400, [])  # an export that rendered prompts anew would render these


def answer(prompt: Prompt, place: ExchangePlace) -> str | Reply:
    """Round 1: a tool, then a kernel that cites its note; round 2: nothing usable; round 3: a kernel after a wrong form."""
    number, _, turn = place
    if number == 1 and turn == 0:
        said = ended("complete", "", prompt)
        call = ToolCall(id="c", name="compile_kernel", arguments=json.dumps({"kernel": kernel(1)}))
        return Reply(said.status, said.text, said.reasoning, said.usage, said.seconds, calls=(call,))
    if number == 2 or (number == 3 and turn == 0):
        return "no kernel here"
    mark = prompt.messages[1].content.partition(" from builtin x.md")[0].rpartition("[")[2]
    return f"## Analysis\nAs [{mark} says.\n\n## Design\nIdea {number}.\n\n## Code\n```cuda\n{kernel(number)}```\n"


def trajectory_in(home: Path) -> Trajectory:
    """A run of a model with retrieval, counters and a GPU, in three rounds of which the second brings nothing."""
    settings = Settings(home=home, policy="chat", budget=2, minutes=5.0)
    chat = options(samples=1, turns=1)
    sandbox = ScriptedSandbox({1: 5.0, 3: 4.0})
    workbench, retriever = RunWorkbench(TASK), ScriptedRetriever()
    workbench.connect(sandbox, retriever)
    with open_store(settings.store_url) as store:
        log = RunExchanges(store, RUN)
        server = AnsweringServer(answer)
        policy = ChatPolicy(chat, server, log, Account(chat, ()), lambda _: None, 0, (), workbench)
        parts = Dependencies(sandbox, policy, retriever, store, diagnose, explain)
        start_run(RUN, TASK, settings, parts, lambda _: None)
        return store.trajectory(RUN)


@pytest.fixture(scope="module")
def seen(tmp_path_factory: pytest.TempPathFactory) -> Trajectory:
    return trajectory_in(tmp_path_factory.mktemp("home"))


def imported(tmp_path: Path, file: Path) -> Trajectory:
    with open_store(f"sqlite:///{tmp_path / 'other.sqlite'}") as store:
        import_files(store, [str(file)])
        again = import_files(store, [str(file)])  # an import can be repeated
        assert (again.steps, again.exchanges) == (0, 0)
        return store.trajectory(RUN)


def steps_file(trajectory: Trajectory, file: Path) -> None:
    export_dataset([trajectory], "steps", file, ExportOptions(), OTHERS)


def sweep_file(trajectory: Trajectory, file: Path) -> None:
    export_sweep([trajectory], file)


def test_a_run_of_a_model_holds_what_it_saw(seen: Trajectory) -> None:
    assert [one.place for one in seen.exchanges] == [(1, 0, 0), (1, 0, 1), (2, 0, 0), (2, 0, 1), (3, 0, 0), (3, 0, 1)]
    assert len(seen.exchanges[0].results) == 1
    assert all(one.shown for one in seen.exchanges if one.round == 1)
    assert seen.exchanges[1].cited == seen.exchanges[1].shown
    assert all(step.profile and step.diagnosis for step in seen.steps[:2])
    assert seen.observations[seen.steps[1].observation_id].profile is not None


@pytest.mark.parametrize(("write", "suffix"), [(steps_file, "jsonl"), (sweep_file, "sweep.zst")], ids=["steps", "sweep"])
def test_what_was_seen_travels_to_another_store(
    seen: Trajectory, tmp_path: Path, write: Callable[[Trajectory, Path], None], suffix: str
) -> None:
    file = tmp_path / f"seen.{suffix}"
    write(seen, file)
    there = imported(tmp_path, file)
    assert there.exchanges == seen.exchanges
    assert there.observations == seen.observations
    for own, its in zip(seen.steps, there.steps, strict=True):
        assert (its.round, its.observation_id, its.candidate) == (own.round, own.observation_id, own.candidate)
        assert (its.profile, its.diagnosis, its.reward) == (own.profile, own.diagnosis, own.reward)
        assert own.evaluation.time_us == its.evaluation.time_us
    write(there, again := tmp_path / f"again.{suffix}")
    assert imported(tmp_path, again) == there


def rows_of(seen: Trajectory, tmp_path: Path, format: Any) -> list[dict[str, Any]]:
    file = tmp_path / f"{format}.jsonl"
    export_dataset([seen], format, file, ExportOptions(), OTHERS)
    return [json.loads(line) for line in file.read_text().splitlines()]


@pytest.mark.parametrize("format", ["sft", "kto", "grpo"])
def test_prompts_of_a_data_set_are_those_that_were_sent_with_what_they_showed(
    seen: Trajectory, tmp_path: Path, format: str
) -> None:
    rows = rows_of(seen, tmp_path, format)
    first, last = seen.exchanges[1], seen.exchanges[-1]
    sent = [[one.model_dump() for one in first.prompt.messages[:2]], [one.model_dump() for one in last.prompt.messages]]
    assert [row["prompt"] for row in rows] == sent
    for row, exchange in zip(rows, (first, last), strict=True):
        provenance = row["provenance"]
        assert (provenance["round"], provenance["turn"]) == (exchange.round, 1)
        shown = json.loads(provenance["shown"])
        assert [piece["chunk_id"] for piece in shown] == list(exchange.shown)
        assert all(f"[{piece['mark']}] from {piece['release']} {piece['path']}" in str(row["prompt"]) for piece in shown)
        assert all(piece["cited"] for piece in shown)
    assert json.loads(rows[0]["provenance"]["counters"]) == []
    assert json.loads(rows[1]["provenance"]["counters"]) == [{"entry": "gemm", "duration_ns": 5000.0}]


def test_a_table_has_the_hits_with_their_text_and_the_counters_that_were_seen(seen: Trajectory) -> None:
    rows = list(table_rows(seen))
    hits = json.loads(rows[0]["hits"])
    assert [(hit["chunk"]["text"], hit["cited"], hit["mark"][:1]) for hit in hits] == [("read me", True, "K")]
    assert rows[0]["seen_profile"] is None
    assert json.loads(rows[1]["seen_profile"])["launches"][0]["metrics"] == {"duration_ns": 5000.0}


def test_a_run_by_calls_exports_what_the_agent_read_before_its_first_call(tmp_path: Path) -> None:
    at = Driven(tmp_path, ScriptedSandbox({1: 5.0}))
    with at.running():
        task = at.call("read_task").text
        at.call("submit_kernel", kernel=kernel(1), idea="Simple.")
    with open_store(at.settings.store_url) as store:
        driven = store.trajectory("driven")
    [row] = rows_of(driven, tmp_path, "sft")
    assert [message["role"] for message in row["prompt"]] == ["system", "user"]
    assert row["prompt"][1]["content"] == task
    assert kernel(1) in row["completion"][0]["content"]
    assert row["provenance"]["model"] == "test 1.0"


def test_lines_of_older_versions_still_load(seen: Trajectory, tmp_path: Path) -> None:
    """They lack `others`, and a sweep of version 1 has nothing of what was seen."""
    lines = [json.loads(to_line(one)) for one in export_steps(seen)]
    assert [len(line.pop("others")) for line in lines] == [1, 3, 0, 0]
    old = tmp_path / "old.jsonl"
    old.write_text("".join(json.dumps(line) + "\n" for line in lines))
    there = imported(tmp_path, old)
    assert [one.place for one in there.exchanges] == [(1, 0, 1), (3, 0, 1)]
    with open_store(f"sqlite:///{tmp_path / 'other.sqlite'}") as store:
        new = tmp_path / "new.jsonl"
        steps_file(seen, new)
        assert import_files(store, [str(new)]).steps == 0  # the same steps: what a newer line has more is no difference


def test_a_sweep_of_a_search_is_as_before(seen: Trajectory, tmp_path: Path) -> None:
    plain = seen.model_copy(update={"exchanges": ()})
    export_sweep([plain], tmp_path / "plain.sweep.zst")
    with zstd.open(tmp_path / "plain.sweep.zst") as file:
        lines = [json.loads(line) for line in file]
    assert [line["version"] for line in lines if "version" in line] == [1]
    assert not any({"seen", "exchange", "profile", "diagnosis"} & line.keys() for line in lines)
    assert imported(tmp_path, tmp_path / "plain.sweep.zst").steps[0].profile is None
