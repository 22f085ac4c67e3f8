"""Published modules on the command line, without a GPU: refused unless trusted, and how an answer reads."""

import json
from pathlib import Path

import pytest

from cudal2_agent.agent.bench.published_files import read_trusted
from cudal2_agent.agent.cli.main import main
from cudal2_agent.agent.cli.render.published_answer import as_row, print_published
from cudal2_agent.contract.errors import DeviceUnavailable, UsageError
from cudal2_agent.contract.records.evaluation import EAGER, TestResult, Timing
from cudal2_agent.contract.settings.settings import Settings
from cudal2_agent.sandbox.cuda.published.published_row import PublishedRow


@pytest.fixture
def files(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> list[str]:
    monkeypatch.setenv("CUDAL2_HOME", str(tmp_path / "home"))
    monkeypatch.chdir(tmp_path)
    (tmp_path / "ModelNew.py").write_text("raise SystemExit('it ran')\n")
    (tmp_path / "problem.py").write_text("raise SystemExit('it ran')\n")
    return ["ModelNew.py", "--problem", "problem.py"]


def test_it_is_refused_in_one_line_and_nothing_runs(files: list[str], capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["bench", *files]) == 2
    said = capsys.readouterr().err
    assert "add --trust-host" in said
    assert "it ran" not in said
    assert len(said.strip().splitlines()) == 1


@pytest.mark.parametrize("flags", [[], ["--shape", "8x8x8", "--problem", "problem.py"]])
def test_it_is_either_a_shape_or_a_problem(files: list[str], flags: list[str], capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["bench", files[0], *flags]) == 2
    assert "either --shape" in capsys.readouterr().err


@pytest.mark.parametrize(
    ("name", "data", "kind", "said"),
    [
        ("none.py", None, UsageError, "none.py cannot be read: No such file"),
        ("binary.py", b"\xff\xfe", UsageError, "binary.py cannot be read: it is not UTF-8 text"),
        ("good.py", b"class ModelNew: ...", DeviceUnavailable, "bench needs one to time modules"),
    ],
)
def test_trusted_files_are_read_first_and_need_a_gpu(
    name: str, data: bytes | None, kind: type[Exception], said: str, tmp_path: Path
) -> None:
    if data is not None:
        (tmp_path / name).write_bytes(data)
    settings = Settings(home=tmp_path / "home", device="none", trust_host=True)
    with pytest.raises(kind, match=said):
        read_trusted([tmp_path / name], settings)


def test_a_machine_without_a_gpu_says_so_before_the_problem_is_traced(
    files: list[str], capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    def traced(*_: object) -> None:
        raise AssertionError("the problem was traced")

    monkeypatch.setattr("cudal2_agent.agent.cli.module_flags.read_module", traced)
    assert main(["bench", *files, "--trust-host", "--device", "none"]) != 0
    assert "there is no GPU here" in capsys.readouterr().err


def row(**fields: object) -> PublishedRow:
    times = {"call": 24.0, "graph": 10.0, "eager": 36.0, "compiled": 12.0}
    timed = {name: Timing(name=name, samples_us=(us, us, us)) for name, us in times.items()}
    found = {
        "file": "ModelNew.py",
        "task": "t",
        "task_id": "1",
        "arithmetic": "f32",
        "training": False,
        "status": "measured",
        "tests": (TestResult(tier="accuracy", name="normal", passed=True),),
        "call": timed["call"],
        "graph": timed["graph"],
        "baselines": (timed[EAGER], timed["compiled"]),
        "weights": "the same seed",
    }
    return PublishedRow.model_validate(found | fields)


def test_the_speedup_that_counts_is_over_the_fastest_baseline() -> None:
    found = as_row(row())
    assert found["speedup_over"]["fastest"]["ratio"] == pytest.approx(1.2)
    assert found["speedup_over"]["fastest"]["baseline"] == "compiled"
    assert found["speedup_over"]["eager"]["ratio"] == pytest.approx(1.5), "calls over calls"
    assert found["right"]


def test_what_was_not_measured_has_no_speedup() -> None:
    found = as_row(row(status="judged", call=None, graph=None, baselines=()))
    assert found["speedup_over"] == {}
    assert not as_row(row(tests=()))["right"], "no answer is no right one"


def test_a_wrong_one_names_its_cases(capsys: pytest.CaptureFixture[str]) -> None:
    failed = TestResult(tier="accuracy", name="wide", passed=False, message="3 of 9 are wrong")
    print_published([row(tests=(failed,), findings=("its answer is kept",))], as_json=False)
    said = capsys.readouterr().out
    assert "WRONG on wide" in said
    assert "accuracy/wide: 3 of 9 are wrong" in said
    assert "suspicious: its answer is kept" in said
    assert "never rewarded" in said
    print_published([row(tests=(failed,))], as_json=True)
    assert json.loads(capsys.readouterr().out)[0]["wrong_on"] == ["wide"]
