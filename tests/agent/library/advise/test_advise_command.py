"""`cudal2-agent advise`, from the command line."""

import json
import re
from pathlib import Path

import pytest

from cudal2_agent.agent.cli.main import main
from cudal2_agent.contract.records.task import GemmTask, Layout
from tests.agent.cli.test_bad_input import refusal
from tests.agent.library.advise.traces import H200, kernel, operator, write_trace
from tests.doubles.libraries import library_entry, write_entries

MODEL = """
import torch
def model():
    return torch.nn.Sequential(torch.nn.Linear(64, 32, bias=False), torch.nn.ReLU(), torch.nn.Linear(32, 16)).to(TYPE)
def inputs():
    return (torch.ones(48, 64, dtype=TYPE),)
"""
FORWARD = GemmTask(m=48, n=32, k=64, layout=Layout.TN)
NONE = "import torch\nmodel = torch.nn.Identity\ndef inputs(): return (torch.ones(2),)\n"


@pytest.fixture(autouse=True)
def _home(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("CUDAL2_HOME", str(tmp_path / "home"))
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr("cudal2_agent.agent.library.advise.library_times._predicted_us", lambda _task, _chip: 2.0)
    write_entries(tmp_path / "small", [library_entry(FORWARD, 1.3)])
    write_model(tmp_path / "model.py", "torch.float16")
    events = [operator("aten::mm", 1, 0, 9, [[48, 64], [64, 32]]), kernel(1, 4.0), kernel(None, 6.0)]
    events[0]["args"]["Input Strides"][1] = [1, 64]
    write_trace(tmp_path / "trace.json.gz", events, **H200)


def write_model(file: Path, element: str) -> Path:
    file.write_text(MODEL.replace("TYPE", element))
    return file


def test_a_model_is_told_what_it_gains_what_is_not_served_and_how_to_search_it(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["advise", "model.py", "--library", "small", "--shapes-out", "missing.json"]) == 0
    shown = capsys.readouterr().out
    row = next(line for line in shown.splitlines() if line.startswith("forward  48x32x64"))
    assert row.split() == ["forward", "48x32x64", "tn", "f16", "mm", "1", "2.60", "2.00", "0.60", "served"]
    assert "gain over cuBLASLt-AutoTuning, with 95 % intervals: 0.60 (0.58 to 0.62) us per pass" in shown
    assert "that is about 5.66 (5.51 to 5.80) % of the time of all matrix products, 75 % of which is predicted" in shown
    assert "not served: 4 of 5 calls, the library has no kernel" in shown
    assert "(4 shapes in missing.json), about 19 s of GPU time" in shown
    assert "cudal2-agent campaign run --shapes missing.json --element f16 --budget 32 --name missing" in shown
    assert "cudal2-agent library tune --shapes missing.json --element f16 --out missing-tuned.jsonl.gz" in shown
    assert Path("missing.json").is_file()
    assert max(map(len, shown.splitlines())) <= 100


def test_json_holds_every_figure(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["advise", "model.py", "--library", "small", "--json"]) == 0
    told = json.loads(capsys.readouterr().out)
    assert (told["chip"], told["kernels"], told["traced"], told["pass_us"]) == ("H200", "small", False, None)
    assert [one["part"] for one in told["parts"]] == ["forward", "dX", "dW", "all"]
    assert told["parts"][-1]["gain_us"]["value"] == pytest.approx(0.6)
    assert {one["status"] for one in told["products"]} == {"served", "missing"}
    assert [one["shapes"] for one in told["searches"]] == [4]
    assert not Path("missing.json").exists()


def test_a_trace_of_a_gpu_says_its_share_of_the_gpu_time(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["advise", "--trace", "trace.json.gz", "--library", "small"]) == 0
    shown = capsys.readouterr().out
    assert "that is 6.00 (5.84 to 6.15) % of the 10.0 us of GPU time of a pass" in shown
    assert "predicted" not in shown
    assert max(map(len, shown.splitlines())) <= 100
    assert main(["advise", "--trace", "trace.json.gz", "--library", "small", "--passes", "2"]) == 0
    assert "of the 5.0 us of GPU time of a pass" in capsys.readouterr().out


def test_a_model_in_single_precision_is_told_so_and_may_count_as_half(capsys: pytest.CaptureFixture[str]) -> None:
    write_model(Path("single.py"), "torch.float32")
    assert main(["advise", "single.py", "--library", "small"]) == 0
    shown = capsys.readouterr().out
    assert "gain: none; no matrix product is served" in shown
    assert "not served: 5 of 5 calls, f32 elements" in shown
    assert "campaign run" not in shown
    assert main(["advise", "single.py", "--library", "small", "--element", "f16"]) == 0
    assert "0.60 (0.58 to 0.62) us per pass" in capsys.readouterr().out


def test_a_library_of_another_chip_serves_nothing_and_says_so(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["advise", "model.py", "--library", "small", "--chip", "B200"]) == 0
    assert "library small was measured on H200: it serves nothing on B200" in capsys.readouterr().out


def test_the_library_that_ships_is_the_default(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["advise", "model.py", "--json"]) == 0
    assert json.loads(capsys.readouterr().out)["kernels"].startswith("h200")


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        ([], "name either a model, FILE.py, or a trace"),
        (["model.py", "--trace", "trace.json.gz"], "name either a model"),
        (["absent.py"], "there is no file absent.py"),
        (["none.py"], "the model has no matrix product"),
        (["empty.py"], "does not define model()"),
        (["model.py", "--library", "absent"], "absent does not exist"),
        (["model.py", "--chip", "H2O0"], "--chip 'H2O0' is not known; choose from"),
        (["model.py", "--element", "f8"], "--element 'f8' is not known"),
        (["model.py", "--passes", "2"], "--passes counts those of a trace"),
        (["model.py", "--library", "small", "--shapes-out", "absent/missing.json"], "cannot be written"),
        (["--trace", "empty.py"], "is not a trace"),
        (["--trace", "single.json", "--element", "f16"], "this trace has GPU times of them"),
    ],
    ids=" ".join,
)
def test_bad_input_is_one_line(arguments: list[str], said: str, capsys: pytest.CaptureFixture[str]) -> None:
    Path("none.py").write_text(NONE)
    Path("empty.py").write_text("")
    event = operator("aten::mm", 1, 0, 9, [[48, 64], [64, 32]], **{"Input type": ["float", "float"]})
    write_trace(Path("single.json"), [event, kernel(1, 4.0)], **H200)
    assert said in refusal(["advise", *arguments], capsys)


@pytest.mark.slow
def test_the_page_shows_the_products_of_its_model(capsys: pytest.CaptureFixture[str]) -> None:
    """Times and what is served depend on the library that ships; the products do not."""
    whole = (Path(__file__).parents[4] / "docs/guide/library.md").read_text("utf-8")
    _, page = whole.split("\n## What a model would gain: advise\n")
    model = re.search(r"```python\n(.*?)```", page, flags=re.DOTALL)
    assert model is not None
    Path("model.py").write_text(model[1])
    assert main(["advise", "model.py"]) == 0
    rows = r"^(forward|dX|dW) +(\d+x\d+x\d+) +(\w\w \w+(?: bias)?) +(\w+) +(\d+) "
    shown = re.findall(rows, capsys.readouterr().out, flags=re.MULTILINE)
    assert len(shown) == 12
    assert sorted(shown) == sorted(re.findall(rows, page, flags=re.MULTILINE))
