"""`cudal2-agent calibrate` on a machine without a GPU: one clear line for what is missing; and its answer as text."""

import os
import subprocess
import sys
from pathlib import Path

import pytest

from cudal2_agent.agent.cli.main import main
from cudal2_agent.agent.learning.calibration import calibration_session
from cudal2_agent.agent.learning.calibration.adaptation import Adopted, CalibrationResult
from cudal2_agent.agent.wiring.gpus import Gpu
from cudal2_agent.contract.records.task import Arch

FIGURES = {"first within 5 %": 0.75, "best of 8 within 2 %": 1.0, "rank correlation": 0.625}


@pytest.fixture(autouse=True)
def home(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv("CUDAL2_HOME", str(tmp_path / "home"))
    monkeypatch.setattr(calibration_session, "visible_gpus", list)
    return tmp_path / "home"


def complaint(words: str, capsys: pytest.CaptureFixture[str]) -> str:
    assert main(words.split()) == 2
    lines = capsys.readouterr().err.strip().splitlines()
    assert len(lines) == 1
    return lines[0]


def test_what_is_missing_is_one_line(capsys: pytest.CaptureFixture[str]) -> None:
    assert "there is no GPU here" in complaint("calibrate", capsys)
    assert "choose a GPU with --device cuda:0" in complaint("calibrate --device emulator", capsys)
    assert "--mode 'fast' is not known" in complaint("calibrate --mode fast", capsys)


def test_without_torch(home: Path) -> None:
    program = (
        "import sys; sys.modules['torch'] = None; from cudal2_agent.agent.cli.main import main; sys.exit(main(['calibrate']))"
    )
    environment = {**os.environ, "CUDAL2_HOME": str(home)}
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=False, env=environment)
    assert done.returncode == 2
    [line] = done.stderr.strip().splitlines()
    assert line.startswith("error: calibrate trains a policy, which needs torch; run: pip install")


def test_a_home_that_cannot_be_written(monkeypatch: pytest.MonkeyPatch, home: Path, capsys: pytest.CaptureFixture[str]) -> None:
    monkeypatch.setattr(calibration_session, "visible_gpus", lambda: [Gpu(index=0, name="Slow 90", arch=Arch.SM_90A)])
    home.write_text("a file where the folder should be")
    assert "choose another home with CUDAL2_HOME" in complaint("calibrate", capsys)


def result() -> CalibrationResult:
    return CalibrationResult(
        chip="Slow 90",
        kind="offline f32",
        minutes=10.0,
        shapes=40,
        schedules=640,
        held_back=10,
        before_name="analytic",
        before=FIGURES,
        policy=FIGURES,
        rates={"tensor_tflops": (800.0, 420.0)},
        base="h200",
        shipped=FIGURES,
        adopted=(Adopted(part="prior", path=None, reason="it is worse"),),
    )


def test_the_answer_as_text_and_as_json_lines(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    monkeypatch.setattr(calibration_session, "calibrate_device", lambda *_: result())
    assert main(["calibrate"]) == 0
    shown = capsys.readouterr().out
    assert "640 schedules of 40 shapes in 10.0 minutes; 10 shapes judge" in shown
    assert [line.split("  ")[0] for line in shown.splitlines()[3:6]] == ["before (analytic)", "h200, not adapted", "adapted"]
    assert "prior: left out: it is worse" in shown
    assert main(["calibrate", "--json"]) == 0
    assert CalibrationResult.model_validate_json(capsys.readouterr().out) == result()


def test_an_interrupt_says_that_shapes_are_kept(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    def interrupted(*_: object) -> CalibrationResult:
        raise KeyboardInterrupt

    monkeypatch.setattr(calibration_session, "calibrate_device", interrupted)
    assert main(["calibrate"]) == 130
    assert "the same command resumes" in capsys.readouterr().err
