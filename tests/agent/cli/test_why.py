"""`runs show --why` over a stored run."""

import json
from pathlib import Path

import pytest

from cudal2_agent.agent.cli.main import main
from cudal2_agent.agent.report.attribution import Improvement
from cudal2_agent.agent.report.replies import Replies
from cudal2_agent.contract.records.candidate import Origin
from cudal2_agent.contract.records.evaluation import CompileFailed, Witness
from cudal2_agent.contract.records.exchange import Exchange, Message, Prompt, Usage
from cudal2_agent.contract.settings.settings import load_settings
from cudal2_agent.store.store import open_store
from tests.doubles import NOW, OBSERVATION, candidate, measured, run_record, step

REPLY = Exchange(
    round=1,
    sample=0,
    turn=0,
    observation_id=OBSERVATION.id,
    prompt=Prompt(messages=(Message(role="user", content="write"),)),
    model="a-model",
    parameters={},
    status="complete",
    reply="no",
    problem="no code block",
    usage=Usage(prompt_tokens=10, completion_tokens=2, counted="server"),
    cost=0.0,
    seconds=1.0,
    created_at=NOW,
)


@pytest.fixture(autouse=True)
def _stored(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Three runs: one with a repair that took the lead and a dropped reply, one where nothing passed, one without a step."""
    monkeypatch.setenv("CUDAL2_HOME", str(tmp_path))
    monkeypatch.chdir(tmp_path)
    broken, mended = candidate(1), candidate(2)
    origin = Origin(policy="chat", parents=(broken.id,), prompt_hash="hash", note="fewer registers")
    mended = mended.model_copy(update={"origin": origin})
    failed = CompileFailed(message="expected ';'", log="")
    with open_store(load_settings().store_url) as store:
        store.record_observation("run-1", OBSERVATION)
        for run_id in ("run-1", "run-2", "run-3"):
            store.start_run(run_record(run_id))
        store.record_step(step(0, 0, evaluation=measured(9.0)))
        store.record_step(step(1, 1, evaluation=failed))
        proved = measured(4.5).model_copy(update={"witness": Witness(status="agreed")})
        store.record_step(step(2, candidate=mended, evaluation=proved, round=2))
        store.record_step(step(0, 1, "run-2", evaluation=failed))
        store.record_exchange("run-1", REPLY)


def shown(capsys: pytest.CaptureFixture[str], *words: str) -> str:
    assert main(["runs", "show", *words]) == 0
    return capsys.readouterr().out


def test_the_lines(capsys: pytest.CaptureFixture[str]) -> None:
    text = shown(capsys, "run-1", "--why")
    assert "step 0, round 1: mma_sync 64x64x32 number=0, 9.00 us measured; the first that passed" in text
    assert "4.50 us measured; 9.00 us before, 2.000x" in text
    assert "design: fewer registers" in text
    assert f"repairs: {candidate(1).id[:8]}, compile failed: expected ';'" in text
    assert "requests: 1 to a-model; candidates: 0" in text
    assert "dropped   1: complete: no code block" in text


def test_the_records(capsys: pytest.CaptureFixture[str]) -> None:
    answer = json.loads(shown(capsys, "run-1", "--why", "--json"))
    better = [Improvement.model_validate(one) for one in answer["why"]["improvements"]]
    assert [(one.index, one.after_us) for one in better] == [(0, 9.0), (2, 4.5)]
    assert Replies.model_validate(answer["why"]["replies"]).dropped == {"complete: no code block": 1}
    assert answer["steps"] == 3


def test_without_the_flag_nothing_is_explained(capsys: pytest.CaptureFixture[str]) -> None:
    assert "design" not in shown(capsys, "run-1")
    assert "why" not in json.loads(shown(capsys, "run-1", "--json"))


@pytest.mark.parametrize("run_id", ["run-2", "run-3"])
def test_a_run_where_nothing_passed(capsys: pytest.CaptureFixture[str], run_id: str) -> None:
    assert "nothing to explain" in shown(capsys, run_id, "--why")
    answer = json.loads(shown(capsys, run_id, "--why", "--json"))
    assert answer["why"] == {"improvements": [], "seen": [], "replies": None}


def test_an_unknown_run(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["runs", "show", "run-9", "--why"]) == 2
    assert "there is no run 'run-9'" in capsys.readouterr().err
