"""Answers without work that pass KernelBench's tolerance on a problem's own inputs: ours refuse them, or the task is unsound.

The problems are our own, of the kinds of fourteen tasks for which such answers are known.
"""

import sys
from collections.abc import Callable
from dataclasses import dataclass

import pytest

torch = pytest.importorskip("torch")

from cudal2_agent.sandbox.modules.interpreter import Interpreter, own_values  # noqa: E402
from cudal2_agent.sandbox.modules.tracing.tracer import Tracer  # noqa: E402

pytestmark = pytest.mark.skipif(sys.platform != "linux", reason="traces run in a jail")
FILE = """
import torch
from torch import nn
from torch.nn import functional as F
class Model(nn.Module):
    def __init__(self):
        super().__init__()
        {init}
    def forward(self, x):
        return {forward}
rows = {rows}
def get_inputs():
    return [torch.rand({shape})]
def get_init_inputs():
    return []
"""
CLOSE = 1e-4  # relative and absolute, as KernelBench compares f32
Values = dict[str, torch.Tensor]


@dataclass(frozen=True)
class Cheated:
    """A problem and the answer that passes on its own inputs. `sound`: whether our inputs tell. `large`: only at sizes beyond
    a test's does it pass.
    """

    kind: str
    cheat: str
    forward: str
    shape: str
    init: str = "pass"
    rows: int = 4
    sound: bool = True
    large: bool = False


_LINEAR = "self.a = nn.Linear(64, 64)"
CHEATED = [
    Cheated("softmax of long rows", "zeros", "x.softmax(1)", "rows, 1 << 15", rows=2),
    Cheated("division by the norm of all", "zeros", "x / torch.norm(x)", "rows, 1 << 12", large=True),
    Cheated("negative before a ReLU", "zeros", "F.relu((self.a(x) - 8.0) * 1.5)", "rows, 64", _LINEAR),
    Cheated(
        "mean of what a norm has centred",
        "zeros",
        "self.n(self.a(x)).mean((1, 2, 3))",
        "rows, 3, 16, 16",
        "self.a = nn.Conv2d(3, 8, 3); self.n = nn.GroupNorm(2, 8)",
    ),
    Cheated(
        "softmax over all channels of pools",
        "zeros",
        "F.avg_pool2d(self.a(x), 2).clamp(0, 1).flatten(1).softmax(1) * 2",
        "rows, 3, 64, 64",
        "self.a = nn.ConvTranspose2d(3, 32, 3)",
        rows=2,
    ),
    Cheated(
        "difference of one element",
        "zeros",
        "F.gelu((lambda m: m - m.mean(1, True))(self.a(x).amax(1, True)))",
        "rows, 64",
        _LINEAR,
        sound=False,
    ),
    Cheated(
        "clamp to zero of a minimum with zero",
        "zeros",
        "torch.minimum(self.n(self.a(x)), torch.tensor(0.0)).clamp(0.0, 1.0)",
        "rows, 3, 8, 8",
        "self.a = nn.Conv2d(3, 8, 3); self.n = nn.GroupNorm(2, 8)",
        sound=False,
    ),
    Cheated(
        "sum of minima behind a GELU",
        "other-input",
        "F.gelu((self.a(x) * 0.01).amin(1, True).sum(2, True)) + self.b",
        "rows, 16, 8, 8",
        "self.a = nn.ConvTranspose2d(16, 32, 3); self.b = nn.Parameter(torch.randn(1, 1, 1))",
        large=True,
    ),
    Cheated(
        "mean, then logsumexp",
        "other-input",
        "(self.a(x).mean((2, 3), True) + self.b).logsumexp(1, True).sum((2, 3)) * 10",
        "rows, 3, 32, 32",
        "self.a = nn.ConvTranspose2d(3, 16, 3); self.b = nn.Parameter(torch.randn(16, 1, 1))",
        large=True,
    ),
    Cheated(
        "sum of sigmoids",
        "other-input",
        "F.avg_pool2d(self.a(x), 4).sigmoid().sum((1, 2, 3))",
        "rows, 8, 32, 32",
        "self.a = nn.Conv2d(8, 64, 3)",
        large=True,
    ),
    Cheated("ReLU of positive numbers", "identity", "F.relu(x)", "rows, 64"),
    Cheated("LeakyReLU of positive numbers", "identity", "F.leaky_relu(x, 0.1)", "rows, 64"),
    Cheated("ELU of positive numbers", "identity", "F.elu(x)", "rows, 64"),
    Cheated("Hardtanh of numbers in its range", "identity", "F.hardtanh(x)", "rows, 64"),
]
ANSWERS: dict[str, Callable[[Values, Values], torch.Tensor]] = {
    "zeros": lambda _, old: torch.zeros_like(old["out"]),
    "other-input": lambda _, old: old["out"],
    "identity": lambda values, _: values["x"],
}


@pytest.mark.parametrize("each", CHEATED, ids=lambda each: each.kind)
def test_a_known_cheat_is_refused_or_its_task_gives_no_reward(tracer: Tracer, each: Cheated) -> None:
    text = FILE.format(init=each.init, forward=each.forward, rows=each.rows, shape=each.shape)
    task = tracer.trace(text, each.kind)
    values = own_values(task, seed=1)
    old = Interpreter(task.graph).run(values | {"x": own_values(task, seed=2)["x"]})
    answer, wanted = ANSWERS[each.cheat](values, old), Interpreter(task.graph).run(values)["out"]
    assert torch.allclose(answer, wanted, rtol=CLOSE, atol=CLOSE) != each.large
    found = tracer.soundness(task, 3)
    passed = {false.kind for false in found.accepted if false.on == "ours"}
    assert (found.status, each.cheat in passed) == (("sound", False) if each.sound else ("unsound", True)), found.reason
