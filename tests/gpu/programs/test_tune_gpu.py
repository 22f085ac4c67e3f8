"""`cudal2-agent tune` on a real GPU, whole: a small model, one minute, and the same command again.

`pytest -s tests/gpu/programs/test_tune_gpu.py` prints the answers.
"""

from pathlib import Path

import pytest
import torch

import cudal2
from cudal2.library.kernel_library import KernelLibrary, open_library
from cudal2_agent.agent.cli.main import main
from cudal2_agent.agent.model_tuning.tune_records import JudgedRange, TuneAnswer
from cudal2_agent.contract.records.task import Layout

pytestmark = pytest.mark.gpu

MODEL = """
import torch
def model():
    layers = [torch.nn.Linear(1024, 512, bias=False), torch.nn.GELU(), torch.nn.Linear(512, 1024, bias=False)]
    return torch.nn.Sequential(*layers, torch.nn.Linear(1024, 256)).bfloat16()
def inputs(tokens):
    return (torch.randn(tokens, 1024).bfloat16(),)
"""


def assert_ranges_are_served(path: Path, held: KernelLibrary) -> None:
    """Every M of a range, from one kernel: right, served, and in a graph for an M that never ran."""
    for entry in held:
        m_range = held.range_below(entry)
        if m_range is None:
            continue
        task = entry.task
        assert task.layout is Layout.TN
        with cudal2.enable(path):
            weight = torch.randn(task.n, task.k, device="cuda", dtype=torch.bfloat16)
            bias = torch.randn(task.n, device="cuda", dtype=torch.bfloat16) if task.bias else None
            torch.nn.functional.linear(torch.randn(task.m, task.k, device="cuda", dtype=torch.bfloat16), weight, bias)
            before = sum(cudal2.status().served.values())
            ms = list(range(m_range.smallest, task.m))
            for m in ms[1:]:
                x = torch.randn(m, task.k, device="cuda", dtype=torch.bfloat16)
                found = torch.nn.functional.linear(x, weight, bias)
                wanted = x.double() @ weight.double().t() + (0 if bias is None else bias.double())
                assert ((found.double() - wanted).abs() <= 2**-7 * wanted.abs() + 2**-6 * task.k**0.5 / 16).all(), (task, m)
            assert sum(cudal2.status().served.values()) == before + len(ms) - 1
            x, graph = torch.randn(ms[0], task.k, device="cuda", dtype=torch.bfloat16), torch.cuda.CUDAGraph()
            with torch.cuda.graph(graph):
                captured = torch.nn.functional.linear(x, weight, bias)
            graph.replay()
            torch.cuda.synchronize()
            assert sum(cudal2.status().served.values()) == before + len(ms)
            torch.testing.assert_close(captured, torch.nn.functional.linear(x, weight, bias), rtol=0, atol=0)


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
    held = open_library(Path(answer.library))
    assert held.manifest.chip == answer.request.chip
    ranges = Path("model-tuned/ranges.jsonl")  # not there for training, or where no kernel is kept
    found = [JudgedRange.model_validate_json(line) for line in ranges.read_text().splitlines()] if ranges.exists() else []
    assert not (training and found)
    assert [row.fault for row in found if row.fault] == []
    for m_range in held.manifest.ranges:
        assert all(point.faster for point in m_range.points)
    assert_ranges_are_served(Path(answer.library), held)
    judged = Path("model-tuned/judged.jsonl")  # not there where no search found a kernel
    rows = judged.read_text() if judged.exists() else None
    assert main(line) == 0
    assert (judged.read_text() if judged.exists() else None) == rows
    again = TuneAnswer.model_validate_json(Path("model-tuned/answer.json").read_text())
    assert (again.searched, again.times) == (0, answer.times)
