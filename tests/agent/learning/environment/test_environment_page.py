"""The examples of the environment in docs/guide/training.md run, and print what the page says."""

import re
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from tests.agent.learning.environment.environment_doubles import SMALL, FixedScore, ScriptedGeneration, call
from tests.agent.learning.environment.test_kernel_environment import BROAD, NARROW, value_of

ROOT = Path(__file__).parents[4]
_, PAGE = (ROOT / "docs" / "guide" / "training.md").read_text("utf-8").split("\n## The sandbox as an environment\n")
FIRST, BATCH, TRL = re.findall(r"```python\n(.*?)```\n", PAGE, flags=re.DOTALL)
[OUTPUT] = re.findall(r"it prints:\n\n```\n(.*?)```\n", PAGE, flags=re.DOTALL)


def defined(example: str) -> dict[str, Any]:
    names: dict[str, Any] = {}
    exec(compile(example, "training.md", "exec"), names)
    return names


def test_the_first_example(tmp_path: Path) -> None:
    pytest.importorskip("cudal2_agent.sandbox.emulator._core", reason="the emulator's core is not built here")
    environment = {"PYTHONPATH": str(ROOT), "PATH": "/usr/bin:/bin", "CUDAL2_HOME": str(tmp_path / "new")}
    script = tmp_path / "example.py"
    script.write_text(FIRST)
    ran = subprocess.run([sys.executable, script], env=environment, cwd=tmp_path, capture_output=True, text=True, check=False)
    assert ran.returncode == 0, ran.stderr
    assert _masked(ran.stdout) == _masked(OUTPUT)
    [value] = re.findall(r"predicted .* value (\S+)", ran.stdout)
    assert -2 < float(value) < 0


def _masked(text: str) -> str:
    """Without the predicted time and its value, which change with the model that predicts."""
    return re.sub(r"predicted \S+ us, value \S+", "predicted", text)


def test_advantages_of_a_group() -> None:
    advantages = defined(BATCH)["group_advantages"]
    fast, slow = advantages(FixedScore(), SMALL, [NARROW, BROAD])
    assert fast == pytest.approx(value_of(4.0) - value_of(8.0))
    assert slow == pytest.approx(-fast)


@pytest.mark.filterwarnings("ignore")
def test_the_trainer(tokenizer: Any, tiny_model: Any, one_step: Any) -> None:
    score = FixedScore()
    trainer = defined(TRL)["trainer_of"](tiny_model, tokenizer, score, [SMALL], one_step)
    trainer._generate_single_turn = ScriptedGeneration(tokenizer, [call(NARROW), call(BROAD)])
    trainer.train()
    assert [len(ids) for _, ids in score.calls] == [2], "both rollouts are scored together"
