"""A module from its problem file to the class that a program imports, without a GPU."""

import importlib.util
import json
from pathlib import Path

import pytest
import torch

from cudal2_agent.agent.cli.main import main

PROBLEM = """import torch
import torch.nn as nn

batch = 16
features = 32


class Model(nn.Module):
    def __init__(self, features):
        super().__init__()
        self.linear = nn.Linear(features, features)
        self.norm = nn.LayerNorm(features)

    def forward(self, x):
        return torch.relu(self.norm(self.linear(x)))


def get_inputs():
    return [torch.randn(batch, features)]


def get_init_inputs():
    return [features]
"""


@pytest.mark.slow
def test_a_problem_becomes_a_proved_plan_and_a_class(home: Path, capsys: pytest.CaptureFixture[str]) -> None:
    file, out = home.parent / "norm.py", home.parent / "out"
    file.write_text(PROBLEM)
    words = ["--dims", "batch=8", "--device", "emulator", "--budget", "2", "--no-knowledge", "--json", "--out", str(out)]
    assert main(["optimize", "--problem", str(file), *words]) == 0
    answer = json.loads(capsys.readouterr().out)
    assert (answer["best"]["status"], answer["best"]["verified_by"]) == ("unmeasured", "emulator")
    assert answer["best"]["predicted_us"] > 0
    assert answer["task"]["dims"] == {"batch": 8, "features": 32}
    assert (answer["keep_pytorch"], answer["module"]) == (False, str(out / "module.py"))
    assert "batch = 8" in (out / "problem.py").read_text()

    spec = importlib.util.spec_from_file_location("result", out / "module.py")
    assert spec is not None
    assert spec.loader is not None
    result = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(result)
    model, x = result.Model(32).eval(), torch.randn(8, 32)
    with torch.no_grad():
        expected = torch.relu(model.norm(model.linear(x)))
        torch.testing.assert_close(model(x), expected)
    assert dict(model.cudal2.fallbacks) == {"the inputs are not on cuda": 1}

    assert main(["runs", "show", answer["run_id"]]) == 0
    assert "schedule: fusion" in capsys.readouterr().out
