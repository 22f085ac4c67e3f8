"""`trajectories list`, `show`, `stats`, `prune` and `verify`, and the filters that they share."""

import io
import json
import os
import sqlite3
import subprocess
import sys
from collections.abc import Callable
from contextlib import closing
from datetime import UTC, datetime, timedelta
from pathlib import Path

import pytest

from cudal2_agent.agent.cli.main import CLOSED_PIPE, main
from cudal2_agent.agent.cli.render.alignment import LINE_CHARS
from cudal2_agent.agent.cli.trajectories import browsing
from cudal2_agent.agent.cli.trajectories.selecting import read_filters
from cudal2_agent.contract.errors import UsageError
from cudal2_agent.store.filters import StepFilter
from cudal2_agent.store.store import open_store
from tests.doubles import ENVIRONMENT, run_record, step
from tests.store.small_store import OTHER_CHIP, small_store

ROOT = Path(__file__).parents[3]
Answer = Callable[..., str]


@pytest.fixture
def url(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> str:
    monkeypatch.setenv("CUDAL2_HOME", str(tmp_path))
    monkeypatch.chdir(tmp_path)
    return small_store(tmp_path / "trajectories.sqlite")


@pytest.fixture
def answer(url: str, capsys: pytest.CaptureFixture[str]) -> Answer:  # noqa: ARG001 (the store is there)
    def run(*words: str) -> str:
        code = main(["trajectories", *words])
        said = capsys.readouterr()
        assert code == 0, said.err
        return said.out

    return run


@pytest.fixture
def refusal(url: str, capsys: pytest.CaptureFixture[str]) -> Answer:  # noqa: ARG001 (the store is there)
    def run(*words: str) -> str:
        assert main(["trajectories", *words]) == 2
        said = capsys.readouterr()
        assert said.out == ""
        [line] = said.err.splitlines()
        return line

    return run


def test_every_filter_becomes_its_field() -> None:
    found = read_filters(
        run=["a", "b"],
        shape=["64_64_64", "1x2x3"],
        arch=["SM_90"],
        chip=["H200"],
        policy=["chat"],
        outcome=["compile-failed", "Wrong"],
        min_speedup=0.5,
        max_speedup=2,
        cutlass=["4.2.0"],
        environment=["580"],
        since="2026-11-21",
        until="2026-11-21T13:30:00+02:00",
    )
    assert found == StepFilter(
        runs=("a", "b"),
        shapes=("64x64x64", "1x2x3"),
        archs=("sm_90a",),
        chips=("H200",),
        policies=("chat",),
        outcomes=("compile_failed", "wrong"),
        min_speedup=0.5,
        max_speedup=2.0,
        cutlass=("4.2.0",),
        environments=("580",),
        since=datetime(2026, 11, 21, tzinfo=UTC),
        until=datetime(2026, 11, 21, 11, 30, tzinfo=UTC),
    )


@pytest.mark.parametrize(("text", "age"), [("12h", timedelta(hours=12)), ("7d", timedelta(days=7)), ("2w", timedelta(weeks=2))])
def test_an_age_is_a_time_before_now(text: str, age: timedelta) -> None:
    since = read_filters(since=text).since
    assert since is not None
    assert abs(datetime.now(UTC) - age - since) < timedelta(minutes=1)


@pytest.mark.parametrize(
    ("given", "said"),
    [
        ({"since": "yesterday"}, "--since 'yesterday' is not a time"),
        ({"since": "999999d"}, "--since '999999d' is not a time"),
        ({"until": "7m"}, "--until '7m' is not a time"),
        ({"since": "2026-11-22", "until": "2026-11-21"}, "is not before --until"),
        ({"outcome": ["fine"]}, "choose from rejected, compile_failed, crashed, timed_out, wrong, unmeasured, measured"),
        ({"arch": ["sm_70"]}, "--arch 'sm_70' is not known; choose from sm_80"),
        ({"shape": ["64"]}, "'64' is not M x N x K"),
        ({"min_speedup": float("nan")}, "--min-speedup nan is not a speedup"),
        ({"max_speedup": -1.0}, "--max-speedup -1 is not a speedup"),
        ({"min_speedup": 2.0, "max_speedup": 1.0}, "no speedup is both"),
    ],
)
def test_a_wrong_filter_is_named(given: dict[str, object], said: str) -> None:
    with pytest.raises(UsageError, match=r"^[^\n]+$") as raised:
        read_filters(**given)  # type: ignore[arg-type]
    assert said in str(raised.value)


@pytest.mark.parametrize("command", [["list"], ["stats"], ["export"], ["prune", "--dry-run"]], ids=" ".join)
@pytest.mark.parametrize(
    ("words", "said"),
    [
        (["--chip", "B300"], f"--chip 'B300' is not in the store; choose from {OTHER_CHIP.name}, H200"),
        (["--policy", "oracle"], "choose from chat, scripted"),
        (["--cutlass", "9.9"], "choose from 4.1.0, 4.2.0"),
        (["--environment", "tpu"], "--environment 'tpu' is not in the store; choose from "),
        (["--run", "run-9"], "there is no run 'run-9'"),
        (["--run", "run"], "run 'run' is not unique; choose from run-1, run-2"),
        (["--outcome", "fine"], "--outcome 'fine' is not known; choose from rejected"),
    ],
    ids=lambda value: " ".join(value) if isinstance(value, list) else "",
)
def test_what_the_store_does_not_hold_is_refused_with_what_it_does(
    command: list[str], words: list[str], said: str, refusal: Answer
) -> None:
    assert said in refusal(*command, *words)


def test_a_list_has_the_newest_last_in_aligned_columns(answer: Answer) -> None:
    first, last = answer("list").splitlines()
    assert first.split() == ["run-1", "8", "steps", "6", "measured", "2.000x", "scripted", "H200", "finished"]
    assert last.split()[:6] == ["run-2", "3", "steps", "3", "measured", "1.250x"]
    assert first.index("measured") == last.index("measured")
    assert "run-1" not in answer("list", "--limit", "1")
    assert answer("list", "--min-speedup", "5") == ""


def test_a_terminal_gets_the_newest_runs_and_the_number_of_the_others(
    answer: Answer, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(browsing, "TERMINAL_ROWS", 1)
    assert len(answer("list").splitlines()) == 2
    monkeypatch.setattr(sys.stdout, "isatty", lambda: True)
    assert main(["trajectories", "list"]) == 0
    said = capsys.readouterr()
    assert [line.split()[0] for line in said.out.splitlines()] == ["run-2"]
    assert said.err == "1 older runs are not shown; --limit 0 shows all\n"
    assert len(answer("list", "--limit", "0").splitlines()) == 2


def test_a_long_id_is_cut_so_that_the_line_fits(answer: Answer, url: str) -> None:
    long = "r" * 128
    with open_store(url) as store:
        store.start_run(run_record(long))
        store.record_step(step(0, run_id=long, observation_id=store.trajectory("run-1").steps[0].observation_id))
    assert max(map(len, answer("list").splitlines())) == LINE_CHARS
    assert long in [row["run_id"] for row in json.loads(answer("list", "--json"))]


def test_a_list_as_json_has_all(answer: Answer) -> None:
    rows = json.loads(answer("list", "--json"))
    assert [(row["run_id"], row["steps"], row["measured"], row["speedup"]) for row in rows] == [
        ("run-1", 8, 6, 2.0),
        ("run-2", 3, 3, 1.25),
    ]
    assert json.loads(answer("list", "--json", "--min-speedup", "9")) == []


def test_filters_narrow_what_is_counted(answer: Answer) -> None:
    assert [row["steps"] for row in json.loads(answer("list", "--json", "--outcome", "compile_failed"))] == [2]
    assert [row["run_id"] for row in json.loads(answer("list", "--json", "--chip", OTHER_CHIP.name.lower()))] == ["run-2"]
    assert json.loads(answer("stats", "--json", "--environment", "driver-600"))["steps"] == 3
    assert json.loads(answer("stats", "--json", "--task", "64x128x256", "--policy", "CHAT"))["steps"] == 3
    assert json.loads(answer("stats", "--json", "--run", "run-1", "--run", "run-2"))["runs"] == 2


def test_a_run_is_shown_with_its_environment_and_its_best(answer: Answer) -> None:
    lines = answer("show", "run-1").splitlines()
    assert lines[0].startswith("   0  round 1   +0.500")
    assert lines[8:10] == ["run: run-1, scripted, finished, 8 steps", f"environment: {ENVIRONMENT.key}"]
    assert lines[10].startswith("best: step 0, 5.00 us, 2.000x")
    assert "environment: nothing was measured" in answer("show", "run-1", "--outcome", "compile_failed")
    assert answer("show", "run-1", "--min-speedup", "9").splitlines()[-1] == "best: none"
    assert len(json.loads(answer("show", "run-1", "--max-speedup", "1", "--json"))["steps"]) == 4


def test_a_run_is_found_by_its_unique_beginning(url: str, answer: Answer, refusal: Answer) -> None:
    with open_store(url) as store:
        store.start_run(run_record("64x64x64-20261121-130401-ab12"))
    assert "run: 64x64x64-20261121-130401-ab12, scripted, running, 0 steps" in answer("show", "64x64x64-2026")
    assert "not unique" in refusal("show", "run-")
    assert "there is no run '%'" in refusal("show", "%")


def test_one_step_in_full(answer: Answer, refusal: Answer) -> None:
    shown = answer("show", "run-1", "--step", "3")
    for part in ("step: 3 of run run-1, round 1", "status: measured", "0.714x", "reward: none", "test: exact/zero-one passed"):
        assert part in shown
    assert "// candidate 3" not in shown
    assert "// candidate 3" in answer("show", "run-1", "--step", "3", "--source")
    assert json.loads(answer("show", "run-1", "--step", "2", "--json"))["evaluation"]["log"] == "error: no"
    assert "status: compile_failed" in answer("show", "run-1", "--step", "2")
    assert "run run-1 has no step 8" in refusal("show", "run-1", "--step", "8")
    assert "name it with --step" in refusal("show", "run-1", "--source")


def test_statistics_as_text(answer: Answer) -> None:
    shown = answer("stats", "--by", "policy")
    assert shown.startswith("11 steps of 2 runs, 2 shapes\n")
    for part in (
        "9  measured",
        "2  compile_failed",
        "8  scripted",
        "withheld from 2 measured",
        "mean 1.581x",
        "100.0% of 2 shapes",
    ):
        assert part in shown
    head, *rows = shown.split("\n\n")[1].splitlines()
    assert head.split()[:4] == ["policy", "runs", "steps", "measured"]
    assert [row.split()[:4] for row in rows] == [["chat", "1", "3", "3"], ["scripted", "1", "8", "6"]]


def test_statistics_of_an_empty_store(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setenv("CUDAL2_HOME", str(tmp_path / "new"))
    assert main(["trajectories", "stats", "--by", "day"]) == 0
    assert "0 steps of 0 runs" in capsys.readouterr().out
    assert main(["trajectories", "stats", "--chip", "H200"]) == 2
    assert "the store has none yet" in capsys.readouterr().err


def test_pruning_asks_first(answer: Answer, refusal: Answer, monkeypatch: pytest.MonkeyPatch) -> None:
    assert "would delete 0 runs, 2 steps" in refusal("prune", "--outcome", "compile_failed")
    assert answer("prune", "--outcome", "compile_failed", "--dry-run").startswith("would delete: 0 runs, 2 steps")
    assert json.loads(answer("stats", "--json"))["steps"] == 11
    monkeypatch.setattr("sys.stdin.isatty", lambda: True)
    monkeypatch.setattr("typer.confirm", lambda *_, **__: True)
    assert answer("prune", "--outcome", "compile_failed").startswith("deleted: 0 runs, 2 steps")
    pruned = json.loads(answer("prune", "--run", "run-2", "--yes", "--compact", "--json"))
    assert (pruned["deleted"], pruned["rows"]["runs"], pruned["rows"]["steps"]) == (True, 1, 3)
    assert json.loads(answer("stats", "--json"))["steps"] == 6
    assert answer("prune", "--keep-best", "2", "--yes").startswith("deleted: 0 runs, 4 steps")
    assert answer("verify") == "the store is sound\n"


def test_an_answer_of_no_deletes_nothing(
    answer: Answer, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    typed = io.StringIO("n\n")
    monkeypatch.setattr(typed, "isatty", lambda: True, raising=False)
    monkeypatch.setattr("sys.stdin", typed)
    assert main(["trajectories", "prune", "--run", "run-1"]) == 2
    said = capsys.readouterr().err
    assert "Delete 1 runs, 8 steps" in said
    assert said.endswith("error: nothing was deleted\n")
    assert json.loads(answer("stats", "--json"))["steps"] == 11


def test_pruning_nothing_in_particular_is_refused(refusal: Answer, answer: Answer) -> None:
    assert "nothing is selected" in refusal("prune", "--yes")
    assert "the store takes" in answer("prune", "--compact")


def test_a_running_run_is_not_pruned(url: str, refusal: Answer) -> None:
    with open_store(url) as store:
        store.update_run(run_record(status="running"))
    assert "run-1 are running" in refusal("prune", "--policy", "scripted", "--yes")


def test_faults_are_listed_and_the_exit_code_says_so(url: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    with closing(sqlite3.connect(tmp_path / "trajectories.sqlite")) as connection, connection:
        connection.execute("update steps set reward = 1 where status = 'compile_failed'")
    assert url
    assert main(["trajectories", "verify"]) == 1
    lines = capsys.readouterr().out.splitlines()
    assert len(lines) == 2
    assert lines[0] == "step 3 (step 2 of run run-1): its reward is 1.0, its record says -2.0"
    assert main(["trajectories", "verify", "--json"]) == 1
    assert json.loads(capsys.readouterr().out) == {"sound": False, "faults": lines}


@pytest.mark.usefixtures("url")
@pytest.mark.parametrize("words", [["list"], ["export"]], ids=" ".join)
def test_a_closed_pipe_ends_quietly(words: list[str], tmp_path: Path) -> None:
    command = [sys.executable, "-m", "cudal2_agent.agent.cli.main", "trajectories", *words]
    own = {**os.environ, "CUDAL2_HOME": str(tmp_path)}
    with subprocess.Popen(command, cwd=ROOT, env=own, stdout=subprocess.PIPE, stderr=subprocess.PIPE) as process:
        assert process.stdout is not None
        assert process.stderr is not None
        process.stdout.close()
        assert process.stderr.read() == b""
    assert process.returncode == CLOSED_PIPE
