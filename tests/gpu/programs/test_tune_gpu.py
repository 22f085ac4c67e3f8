"""`cudal2-agent tune` on a real GPU, whole: a small model, one minute, and the same command again.

`pytest -s tests/gpu/programs/test_tune_gpu.py` prints the answers.
"""

from pathlib import Path

import pytest

from cudal2.library.kernel_library import open_library
from cudal2_agent.agent.cli.main import main
from cudal2_agent.agent.model_tuning.tune_records import TuneAnswer

pytestmark = pytest.mark.gpu

MODEL = """
import torch
def model():
    layers = [torch.nn.Linear(1024, 512, bias=False), torch.nn.GELU(), torch.nn.Linear(512, 1024, bias=False)]
    return torch.nn.Sequential(*layers, torch.nn.Linear(1024, 256)).bfloat16()
def inputs(tokens):
    return (torch.randn(tokens, 1024).bfloat16(),)
"""


@pytest.mark.parametrize("training", [False, True])
def test_a_model_is_served_and_timed_and_the_same_command_repeats_nothing(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], training: bool
) -> None:
    monkeypatch.setenv("CUDAL2_HOME", str(tmp_path / "home"))
    monkeypatch.chdir(tmp_path)
    Path("model.py").write_text(MODEL)
    line = ["tune", "model.py", "--tokens", "16,256", "--minutes", "1.5", "--gpus", "0", "--budget", "8"]
    line += ["--training"] if training else []
    assert main(line) == 0
    print(capsys.readouterr().out)
    answer = TuneAnswer.model_validate_json(Path("model-tuned/answer.json").read_text())
    assert [row.tokens for row in answer.times] == [16, 256]
    for row in answer.times:
        assert [one.way for one in row.ways] == ["eager", "graph", "compile"], row.notes
        assert row.outputs is not None
        assert (row.gradients is not None) == training
        assert row.shares is not None
        assert row.shares.whole_us > 0
    assert answer.library is not None
    assert open_library(Path(answer.library)).manifest.chip == answer.request.chip
    judged = Path("model-tuned/judged.jsonl")  # not there where no search found a kernel
    rows = judged.read_text() if judged.exists() else None
    assert main(line) == 0
    assert (judged.read_text() if judged.exists() else None) == rows
    again = TuneAnswer.model_validate_json(Path("model-tuned/answer.json").read_text())
    assert (again.searched, again.times) == (0, answer.times)
