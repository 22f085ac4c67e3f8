"""Gated feed-forward layers on a real GPU: kernels of a schedule written by hand, alone, compiled and in graphs."""

from collections.abc import Iterator
from pathlib import Path

import pytest
import torch
from torch.nn import functional

import cudal2
from cudal2.torch.gpu_platform import CudaPlatform
from cudal2.torch.inductor.linear_activation import APPLIED
from cudal2_agent.contract.records.task import Activation, Arch, ElementType, GemmTask, Layout
from tests.gpu.programs.by_hand import assert_close, assert_judged_right, drawn, library_of, served

pytestmark = pytest.mark.gpu

M, N, K = 64, 128, 256
OF_GATE = {"layout": Layout.TN, "element": ElementType.BF16, "arch": Arch.SM_90A, "gated": True}
TASKS = [GemmTask(m=M, n=N, k=K, activation=one, **OF_GATE) for one in Activation]


@pytest.fixture
def library(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
    if CudaPlatform().identity(0).arch is not Arch.SM_90A:
        pytest.skip("gated kernels need sm_90a")
    with library_of(TASKS, tmp_path, monkeypatch) as path:
        yield path


def exact(activation: Activation, x: torch.Tensor, gate: torch.Tensor, up: torch.Tensor) -> torch.Tensor:
    return APPLIED[activation](x.double() @ gate.double().t()) * (x.double() @ up.double().t())


class Apart(torch.nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.gate, self.up = torch.nn.Linear(K, N, bias=False), torch.nn.Linear(K, N, bias=False)

    def weights(self) -> tuple[torch.Tensor, torch.Tensor]:
        return self.gate.weight, self.up.weight

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return functional.silu(self.gate(x)) * self.up(x)


class Joined(torch.nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.both = torch.nn.Linear(K, 2 * N, bias=False)

    def weights(self) -> tuple[torch.Tensor, torch.Tensor]:
        gate, up = self.both.weight.chunk(2)
        return gate, up

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        gate, up = self.both(x).chunk(2, -1)
        return functional.silu(gate) * up


@pytest.mark.parametrize("joined", [True, False])
@pytest.mark.parametrize("task", TASKS, ids=lambda one: one.activation)
def test_a_kernel_computes_a_gated_layer(library: Path, task: GemmTask, joined: bool) -> None:
    """Beside the same in float64. The gate is the second half of a joined weight, too; NaN stays NaN."""
    assert task.activation is not None
    weight = drawn(2 * N, K) / K**0.5
    x, (gate, up) = drawn(M, K), weight.chunk(2)
    up = up if joined else up.clone()
    with cudal2.enable(library):
        for first, second in ((gate, up), (up, gate)):
            found = torch.ops.cudal2.gated_linear(x, first, second, task.activation.value)
            assert_close(found, exact(task.activation, x, first, second))
        assert served() == 2, cudal2.status()
        found = torch.ops.cudal2.gated_linear(torch.full_like(x, float("nan")), gate, up, task.activation.value)
        assert found.isnan().all()
        assert not torch.ops.cudal2.gated_linear(torch.zeros_like(x), gate, up, task.activation.value).any()


@pytest.mark.parametrize("mode", [None, "reduce-overhead"])
@pytest.mark.parametrize("kind", [Apart, Joined])
def test_a_compiled_model_is_served_also_in_graphs(library: Path, kind: type[Apart | Joined], mode: str | None) -> None:
    model, x = kind().cuda().bfloat16().eval(), drawn(4, M // 4, K)
    with torch.no_grad():
        wanted, plain = exact(Activation.SILU, x, *model.weights()), model(x)
        with cudal2.enable(library):
            compiled = torch.compile(model, mode=mode)
            for _ in range(4):
                found = compiled(x).clone()
                assert_close(found, wanted)
            assert served() == 4 if mode is None else served() >= 1, cudal2.status()
            assert cudal2.status().fallbacks == {}
            if mode is None:
                graph, given = torch.cuda.CUDAGraph(), torch.zeros_like(x)
                with torch.cuda.graph(graph):
                    captured = compiled(given)
                given.copy_(x)
                graph.replay()
                assert torch.equal(captured, found)
        ours, theirs = ((one.double() - wanted).norm() for one in (found, plain))
        assert ours <= 1.1 * theirs, "it rounds once, and PyTorch's operations round three times"
        if mode is None:
            before = served()
            assert torch.equal(compiled(x), plain), "PyTorch's own operations"
            assert served() == before


def test_kernels_are_judged_beside_a_joined_product_and_one_kernel(library: Path) -> None:
    assert_judged_right(library)
