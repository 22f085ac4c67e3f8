"""Linear layers with activations on a real GPU: kernels of a schedule written by hand, alone, compiled and in graphs."""

from collections.abc import Iterator
from pathlib import Path

import pytest
import torch

import cudal2
from cudal2.torch.inductor.linear_activation import APPLIED
from cudal2_agent.contract.records.task import Activation, ElementType, GemmTask, Layout
from tests.gpu.programs.by_hand import assert_close, assert_judged_right, drawn, library_of, served

pytestmark = pytest.mark.gpu

M, SIZE = 64, 128  # the schedule takes a K of 128 at most
BF16 = {"layout": Layout.TN, "element": ElementType.BF16}
FIRST = [GemmTask(m=M, n=SIZE, k=SIZE, bias=True, activation=one, **BF16) for one in Activation]
SECOND = GemmTask(m=M, n=SIZE, k=SIZE, activation=Activation.SILU, **BF16)


@pytest.fixture
def library(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
    with library_of([*FIRST, SECOND], tmp_path, monkeypatch) as path:
        yield path


class Layers(torch.nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.first, self.second = torch.nn.Linear(SIZE, SIZE), torch.nn.Linear(SIZE, SIZE, bias=False)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return torch.nn.functional.silu(self.second(torch.nn.functional.gelu(self.first(x))))


@pytest.mark.parametrize("task", FIRST, ids=lambda one: one.activation)
def test_a_kernel_computes_its_activation(library: Path, task: GemmTask) -> None:
    """Beside the same in float64, and of numbers of every size; NaN stays NaN, and relu's zero is zero."""
    x, weight, bias = drawn(M, SIZE), drawn(SIZE, SIZE) / SIZE**0.5, drawn(SIZE)
    assert task.activation is not None
    with cudal2.enable(library):
        found = torch.ops.cudal2.linear_activation(x, weight, bias, task.activation.value)
        assert served() == 1, cudal2.status()
        assert_close(found, APPLIED[task.activation](torch.nn.functional.linear(x.double(), weight.double(), bias.double())))
        far = torch.linspace(-60, 60, SIZE, device="cuda").bfloat16()
        found = torch.ops.cudal2.linear_activation(torch.zeros_like(x), weight, far, task.activation.value)
        assert_close(found, APPLIED[task.activation](far.double()).expand(M, SIZE))
        found = torch.ops.cudal2.linear_activation(torch.full_like(x, float("nan")), weight, bias, task.activation.value)
        assert found.isnan().all()


@pytest.mark.parametrize("mode", [None, "reduce-overhead"])
def test_a_compiled_model_is_served_also_in_graphs(library: Path, mode: str | None) -> None:
    model, x = Layers().cuda().bfloat16().eval(), drawn(4, M // 4, SIZE)
    with torch.no_grad():
        hidden = torch.nn.functional.gelu(
            torch.nn.functional.linear(x.double(), model.first.weight.double(), model.first.bias.double())
        ).bfloat16()
        wanted = torch.nn.functional.silu(torch.nn.functional.linear(hidden.double(), model.second.weight.double()))
        plain = model(x)
        with cudal2.enable(library):
            compiled = torch.compile(model, mode=mode)
            for _ in range(4):
                found = compiled(x).clone()
                torch.testing.assert_close(found.double(), wanted, rtol=2e-2, atol=2e-3)
            assert served() == 8 if mode is None else served() >= 2, cudal2.status()
            assert cudal2.status().fallbacks == {}
            if mode is None:
                graph, given = torch.cuda.CUDAGraph(), torch.zeros_like(x)
                with torch.cuda.graph(graph):
                    captured = compiled(given)
                given.copy_(x)
                graph.replay()
                assert torch.equal(captured, found)
        if mode is None:
            before = served()
            assert torch.equal(compiled(x), plain), "PyTorch's own operations"
            assert served() == before


def test_kernels_are_judged_beside_pytorchs_product_and_activation(library: Path) -> None:
    assert_judged_right(library)
