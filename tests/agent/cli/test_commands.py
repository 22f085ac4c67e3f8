"""The commands end to end on a machine without a GPU: real policy, real compiler, real store."""

import json
import os
import signal
import subprocess
import sys
import xml.etree.ElementTree as ElementTree
from pathlib import Path

import pytest

from cudal2_agent.agent.cli.main import main
from cudal2_agent.contract.records.candidate import Candidate, Origin
from cudal2_agent.contract.records.evaluation import Unmeasured
from cudal2_agent.contract.records.trajectory import RunRecord
from cudal2_agent.store.steps import ExportedStep

ROOT = Path(__file__).parents[3]


@pytest.fixture(scope="module")
def home(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("home")


@pytest.fixture(autouse=True)
def _at_home(home: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("CUDAL2_HOME", str(home))
    monkeypatch.chdir(tmp_path)


@pytest.fixture(scope="module")
def optimized(home: Path) -> dict[str, object]:
    """The answer of one real run of three candidates."""
    words = ["optimize", "--shape", "64x64x64", "--device", "none", "--arch", "sm_80", "--budget", "3", "--json"]
    command = [sys.executable, "-m", "cudal2_agent.agent.cli.main"]
    indexed = [*command, "index", "add", environment(home)["CUDAL2_CUTLASS"]]  # a search over schedules builds no index itself
    subprocess.run(indexed, cwd=ROOT, env=environment(home), capture_output=True, check=True)
    command += [*words, "--out", str(home / "out")]
    ended = subprocess.run(command, cwd=ROOT, env=environment(home), capture_output=True, text=True, check=False)
    assert ended.returncode == 0, ended.stderr
    rows = [row for row in ended.stderr.splitlines() if row.startswith(("run ", "round ", "step "))]
    assert len(rows) >= 5
    assert max(map(len, rows)) <= 100
    answer: dict[str, object] = json.loads(ended.stdout)
    return answer


def environment(home: Path) -> dict[str, str]:
    source = home / "cutlass"  # a small stand-in, so that nothing is fetched
    source.mkdir(exist_ok=True)
    (source / "ring.hpp").write_text("/// Hands a buffer of the pipeline back.\ninline void release_buffer(int stage);\n")
    own = {"CUDAL2_HOME": str(home), "CUDAL2_CUTLASS": str(source), "PYTHONPATH": str(ROOT)}
    return {**os.environ, **own}


def answer_of(arguments: list[str], capsys: pytest.CaptureFixture[str]) -> str:
    assert main(arguments) == 0
    return capsys.readouterr().out


def test_optimize_answers_without_a_gpu_and_calls_nothing_measured(optimized: dict[str, object]) -> None:
    assert optimized["measured"] is False
    assert optimized["status"] == "finished"
    best = optimized["best"]
    assert isinstance(best, dict)
    assert best["predicted_us"] > 0
    assert "time_us" not in best


def test_a_model_of_the_settings_shares_the_rounds(capsys: pytest.CaptureFixture[str]) -> None:
    words = ["optimize", "--shape", "64x64x64", "--device", "none", "--arch", "sm_80", "--budget", "2", "--no-knowledge"]
    server = ["--model", "any", "--base-url", "http://127.0.0.1:9/v1"]
    assert main([*words, *server]) == 0
    captured = capsys.readouterr()
    assert captured.err.startswith("note: any may use up to 2,000,000 tokens, no cap on money; with --policy schedule")
    assert "candidates from portfolio" in captured.err
    assert "no language model took part" not in captured.out
    assert main(words) == 0
    assert captured.out != (alone := capsys.readouterr().out)
    assert alone.splitlines()[-1].startswith("note: no language model took part")


@pytest.mark.parametrize("layout", ["nn", "tn"])
def test_a_gated_task_that_no_family_computes_says_which_they_do(layout: str, capsys: pytest.CaptureFixture[str]) -> None:
    words = ["optimize", "--shape", "16x24x32", "--activation", "silu", "--gated", "--layout", layout]
    main([*words, "--device", "none", "--arch", "sm_90a", "--budget", "1", "--no-knowledge"])
    told = "gated kernels for --layout tn on sm_90a" in capsys.readouterr().out
    assert told == (layout == "nn")


def test_the_output_folder(optimized: dict[str, object]) -> None:
    out = Path(str(optimized["out"]))
    expected = {"kernel.cu", "plan.json", "kernel.cubin", "evaluation.json", "settings.json", "report.md", "progress.svg"}
    assert {path.name for path in out.iterdir()} == expected
    candidate = Candidate.from_source((out / "kernel.cu").read_text(), Origin(policy="file"))
    assert candidate.plan.model_dump(mode="json", exclude_defaults=True) == json.loads((out / "plan.json").read_text())
    assert Unmeasured.model_validate_json((out / "evaluation.json").read_text()).verified_by == "nothing"
    assert RunRecord.model_validate_json((out / "settings.json").read_text()).settings.budget == 3
    assert (out / "kernel.cubin").read_bytes()[:4] == b"\x7fELF"
    ElementTree.parse(out / "progress.svg")


def test_the_report_says_what_was_not_done_and_how_to_go_on(
    optimized: dict[str, object], capsys: pytest.CaptureFixture[str]
) -> None:
    report = (Path(str(optimized["out"])) / "report.md").read_text()
    assert "not executed; its time is predicted, not measured" in report
    assert report.count("predicted)") == optimized["steps"]
    again = next(line for line in report.splitlines() if line.startswith("cudal2-agent verify"))
    assert "compiles, not executed" in answer_of([*again.split()[1:], "--device", "none"], capsys)


def test_verify_as_json_and_what_does_not_compile(
    optimized: dict[str, object], tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    kernel = Path(str(optimized["out"])) / "kernel.cu"
    words = ["--shape", "64x64x64", "--arch", "sm_80", "--device", "none", "--json"]
    assert json.loads(answer_of(["verify", str(kernel), *words], capsys))["evaluation"]["status"] == "unmeasured"
    broken = tmp_path / "broken.cu"
    broken.write_text(kernel.read_text() + "\nthis is no C++\n")
    assert main(["verify", str(broken), *words]) == 1
    assert json.loads(capsys.readouterr().out)["evaluation"]["status"] == "compile_failed"


def test_bench_needs_a_gpu(optimized: dict[str, object], capsys: pytest.CaptureFixture[str]) -> None:
    kernel = Path(str(optimized["out"])) / "kernel.cu"
    assert main(["bench", str(kernel), "--shape", "64x64x64", "--arch", "sm_80", "--device", "none"]) == 2
    assert "no sm_80 GPU" in capsys.readouterr().err


def test_runs_list_and_show(optimized: dict[str, object], capsys: pytest.CaptureFixture[str]) -> None:
    run_id = str(optimized["run_id"])
    assert run_id in answer_of(["runs", "list"], capsys)
    assert run_id in [run["run_id"] for run in json.loads(answer_of(["runs", "list", "--json"], capsys))]
    shown = json.loads(answer_of(["runs", "show", run_id, "--json"], capsys))
    assert shown["best"] == optimized["best"]
    assert "predicted" in answer_of(["runs", "show", run_id], capsys)


def test_trajectories_list_show_export(
    optimized: dict[str, object], tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    run_id = str(optimized["run_id"])
    assert run_id in answer_of(["trajectories", "list"], capsys)
    assert f"{optimized['steps']} steps" in answer_of(["trajectories", "list"], capsys)
    shown = answer_of(["trajectories", "show", run_id], capsys).splitlines()
    assert len([line for line in shown if line[4:11] == "  round"]) == optimized["steps"]
    lines = answer_of(["trajectories", "export", run_id], capsys).splitlines()
    exported = [ExportedStep.model_validate_json(line) for line in lines]
    assert [step.index for step in exported] == list(range(len(lines)))
    assert all(step.candidate.origin.chunk_ids for step in exported)
    assert "## What was looked up" in (Path(str(optimized["out"])) / "report.md").read_text()
    written = answer_of(["trajectories", "export", run_id, "--out", str(tmp_path / "steps.jsonl"), "--json"], capsys)
    assert json.loads(written)["steps"] == len(lines)
    assert (tmp_path / "steps.jsonl").read_text().splitlines() == lines


def test_a_finished_run_is_not_resumed(optimized: dict[str, object], capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["runs", "resume", str(optimized["run_id"])]) == 2
    assert "has finished" in capsys.readouterr().err


def test_doctor_tells_what_is_there(capsys: pytest.CaptureFixture[str]) -> None:
    answer = json.loads(answer_of(["doctor", "--json"], capsys))
    checks = {check["name"]: check for check in answer["checks"]}
    assert answer["works"]
    assert checks["compiler (NVRTC)"]["ok"]
    assert all(check["remedy"] for check in answer["checks"] if not check["ok"])


def test_doctor_fails_where_nothing_can_be_written(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    (tmp_path / "file").write_text("")
    monkeypatch.setenv("CUDAL2_HOME", str(tmp_path / "file"))
    assert main(["doctor"]) == 1
    assert "MISSING  store" in capsys.readouterr().out


@pytest.mark.parametrize("sent", [signal.SIGINT, signal.SIGTERM])
def test_an_interrupt_ends_cleanly_and_the_run_goes_on(
    sent: signal.Signals, home: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    words = ["optimize", "--shape", "128x128x128", "--device", "none", "--arch", "sm_80", "--budget", "400", "--no-knowledge"]
    command = [sys.executable, "-m", "cudal2_agent.agent.cli.main", *words]
    pipe = subprocess.PIPE
    small_rounds = {**environment(home), "CUDAL2_ROUND_SIZE": "2"}
    with subprocess.Popen(command, cwd=ROOT, env=small_rounds, stdout=pipe, stderr=pipe, text=True) as process:
        assert process.stderr is not None
        seen = [process.stderr.readline() for _ in range(4)]
        process.send_signal(sent)
        out, err = process.communicate(timeout=60)
    assert process.returncode == 130, err
    run_id = next(line.split()[1] for line in seen if line.startswith("run "))
    assert f"run {run_id}: interrupted" in err
    assert "report.md" in out
    steps = len(json.loads(answer_of(["trajectories", "show", run_id, "--json"], capsys))["steps"])
    assert steps >= 1
    answer = json.loads(answer_of(["runs", "resume", run_id, "--budget", str(steps + 1), "--json"], capsys))
    assert answer["status"] == "finished"
    assert answer["steps"] >= steps
