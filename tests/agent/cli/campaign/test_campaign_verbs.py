"""`cudal2-agent campaign`, from the command line, over the emulator."""

import json
from pathlib import Path
from types import SimpleNamespace

import pytest

from cudal2_agent.agent.cli.main import main
from cudal2_agent.contract.settings.run_settings import RunSettings
from cudal2_agent.store.campaign_queue import CampaignQueue
from cudal2_agent.store.store import open_store
from tests.doubles.campaign_modules import asked, module_row
from tests.doubles.modules import PROBLEM
from tests.store.campaigns.rows import result, tasks


@pytest.fixture(autouse=True)
def home(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv("CUDAL2_HOME", str(tmp_path / "home"))
    monkeypatch.chdir(tmp_path)
    return tmp_path / "home"


def filled(home: Path) -> None:
    """A campaign with two rows and a shape that failed."""
    with open_store(f"sqlite:///{home / 'trajectories.sqlite'}") as store:
        queue = CampaignQueue(store, "main")
        queue.open(RunSettings())
        queue.add(tasks(3), seed=0)
        queue.take_over([result(task) for task in list(tasks(3))[:2]])
        claim = queue.claim("a")
        assert claim is not None
        queue.fail(claim, "its operands\ndo not fit", for_good=True)


def test_a_tiny_campaign_over_the_emulator(home: Path, capsys: pytest.CaptureFixture[str]) -> None:
    words = ["campaign", "run", "--gpus", "emulator", "--budget", "1", "--minutes", "0.5", "--name", "tiny"]
    assert main([*words, "--shapes", "16x64x64", "--json"]) == 0
    shown = capsys.readouterr()
    answer = json.loads(shown.out)
    assert (answer["campaign"], answer["done"], answer["pending"]) == ("tiny", 1, 0)
    assert "16x64x64 nn: no kernel was measured: verified by the emulator" in shown.err
    assert not (home / "checkpoints.sqlite").exists()
    assert main(words) == 0, "it goes on where nothing is left"
    assert "1 of 1 shapes done" in capsys.readouterr().out


def test_status_and_results_show_rows_and_failures(home: Path, capsys: pytest.CaptureFixture[str]) -> None:
    filled(home)
    assert main(["campaign", "status"]) == 0
    told = capsys.readouterr().out
    assert "2 of 3 shapes done, 0 left, 1 failed" in told
    assert "failed: 48x64x32 after 3 attempts: its operands do not fit" in told
    assert "1.200x" in told
    assert main(["campaign", "results"]) == 0
    assert "not proved" in capsys.readouterr().out
    assert main(["campaign", "results", "--mode", "server"]) == 0
    assert "no result yet" in capsys.readouterr().out
    assert main(["campaign", "results", "--json"]) == 0
    assert [json.loads(line)["task"]["kind"] for line in capsys.readouterr().out.splitlines()] == ["gemm", "gemm"]


def test_results_go_to_another_home_and_the_campaign_goes_on_there(
    home: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    filled(home)
    assert main(["campaign", "results", "--out", "rows.jsonl.gz"]) == 0
    assert "2 rows in rows.jsonl.gz" in capsys.readouterr().out
    monkeypatch.setenv("CUDAL2_HOME", str(tmp_path / "other"))
    assert main(["campaign", "import", "rows.jsonl.gz", "rows.jsonl.gz", "--json"]) == 0
    assert json.loads(capsys.readouterr().out) == {"new": 2, "rows": 4}
    run = ["campaign", "run", "--shapes", "16x64x32,32x64x32,48x64x32", "--gpus", "emulator", "--hours", "0", "--json"]
    assert main(run) == 0
    answer = json.loads(capsys.readouterr().out)
    assert (answer["done"], answer["pending"]) == (2, 1)


@pytest.mark.parametrize(
    ("words", "said"),
    [
        (["run", "--shapes", "bad.txt", "--gpus", "emulator"], "bad.txt line 2"),
        (["run", "--shapes", "nowhere", "--gpus", "emulator"], "neither grid1000 nor a file"),
        (["run", "--gpus", "emulator"], "there is no campaign 'main'"),
        (["run", "--shapes", "64x64x64", "--gpus", "emulator:x"], "emulator:2"),
        (["run", "--shapes", "64x64x64", "--gpus", "all"], "there is no GPU"),
        (["run", "--shapes", "64x64x64", "--gpus", "zero"], "numbers such as 0,1"),
        (["status", "--name", "other"], "there is no campaign 'other'"),
        (["prove", "--name", "other"], "there is no campaign 'other'"),
        (["import", "bad.txt"], "bad.txt, line 1"),
        (["record", "bad.txt"], "must end in .py"),
        (["results", "--mode", "quick"], "--mode 'quick' is not known"),
    ],
)
def test_wrong_input_is_one_line(words: list[str], said: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    (tmp_path / "bad.txt").write_text("64x64x64\n64x\n")
    assert main(["campaign", *words]) == 2
    error = capsys.readouterr().err
    assert said in error
    assert len(error.splitlines()) == 1


def test_explain_needs_a_gpu_and_results(home: Path, capsys: pytest.CaptureFixture[str]) -> None:
    filled(home)
    assert main(["campaign", "explain"]) == 2
    [line] = capsys.readouterr().err.splitlines()
    assert line == "error: there is no GPU here whose counters could be read; run this on a machine with one"
    assert main(["campaign", "explain", "--mode", "server"]) == 2
    assert "campaign 'main' has no result to explain" in capsys.readouterr().err


def test_status_tells_the_cost(home: Path, capsys: pytest.CaptureFixture[str]) -> None:
    filled(home)
    assert main(["campaign", "status", "--json"]) == 0
    cost = json.loads(capsys.readouterr().out)["cost"]
    assert set(cost) == {"gpu_s", "host_cpu_s", "candidates", "search_peak_mib", "campaign_peak_mib"}
    assert (cost["host_cpu_s"], cost["campaign_peak_mib"]) == (None, None)


def test_modules_of_a_folder_are_asked_and_told_beside_each_other(
    home: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    """The queue is filled and nothing is searched; then rows come, and one file changes."""
    monkeypatch.setattr("cudal2_agent.agent.cli.campaign.running.Campaign", lambda *_, **__: SimpleNamespace(run=lambda: None))
    for name in ("level1/1_a", "level2/1_b"):
        (tmp_path / "problems" / name).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / "problems" / f"{name}.py").write_text(PROBLEM.format(rows=32))
    words = ["campaign", "run", "--problems", "problems", "--gpus", "emulator", "--name", "modules"]
    assert main(words) == 0
    assert "0 of 2 tasks done, 2 left" in capsys.readouterr().out
    with open_store(f"sqlite:///{home / 'trajectories.sqlite'}") as store:
        CampaignQueue(store, "modules").take_over([module_row(asked("level1/1_a"))])
    (tmp_path / "problems" / "level2" / "1_b.py").write_text(PROBLEM.format(rows=64))
    assert main([*words, "--json"]) == 0
    shown = capsys.readouterr()
    answer = json.loads(shown.out)
    assert (answer["done"], answer["pending"], answer["modules"][-1]["faster"]) == (1, 1, 1)
    assert "1 files have changed since they were asked" in shown.err
    assert main(["campaign", "status", "--name", "modules"]) == 0
    assert "1 of 2 tasks done" in capsys.readouterr().out
    assert main(["campaign", "results", "--name", "modules"]) == 0
    told = capsys.readouterr().out
    assert "level1/1_a: 5.00 us, 1.500x of compiled (1.490 to 1.510), 2 kernels, 1 library call; 4 candidates, 9.0 s" in told
    assert main(["campaign", "report", "--name", "modules", "--rows", "rows.jsonl.gz", "--json"]) == 0
    assert json.loads(capsys.readouterr().out)["results"] == 1
    assert 'id="modules"' in (tmp_path / "campaign.html").read_text()
    assert main(["campaign", "import", "rows.jsonl.gz", "--name", "other"]) == 0
    assert "0 of 1 rows are new" in capsys.readouterr().out, "the store has it already"


@pytest.mark.parametrize(
    ("words", "said"),
    [
        (["--problems", "none"], "'none' is no file, folder or collection"),
        (["--problems", "empty"], "empty holds no Python file"),
        (["--problems", "empty", "--shapes", "64x64x64"], "--shapes and --problems name two kinds of tasks"),
        (["--problems", "empty", "--layout", "tn"], "modules have no --layout"),
        (["--shapes", "64x64x64", "--levels", "1"], "--levels is about modules; name them with --problems"),
        (["--problems", "full", "--levels", "one"], "--levels 'one' is no number"),
        (["--problems", "full", "--names", "*none*"], "--names leave none of the 1 problems of full"),
        (["--problems", "full", "--arithmetic", "f8"], "--arithmetic 'f8' is not known"),
    ],
)
def test_a_wrong_choice_of_modules_is_one_line(
    words: list[str], said: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    (tmp_path / "empty").mkdir()
    (tmp_path / "full").mkdir()
    (tmp_path / "full" / "relu.py").write_text(PROBLEM.format(rows=32))
    assert main(["campaign", "run", "--gpus", "emulator", *words]) == 2
    [line] = capsys.readouterr().err.splitlines()
    assert said in line
