"""Gated feed-forward layers on a real GPU: kernels of a schedule written by hand, alone, compiled and in graphs."""

from collections.abc import Iterator
from pathlib import Path

import pytest
import torch
from torch.nn import functional

import cudal2
from cudal2.library.kernel_library import open_library
from cudal2.library.prepared_kernels import PreparedKernels
from cudal2.torch import torch_session
from cudal2.torch.gpu_platform import CudaPlatform
from cudal2.torch.inductor.linear_activation import APPLIED
from cudal2_agent.agent.library.algorithms.suggested_algorithms import environment_of
from cudal2_agent.agent.library.library_writing import manifest_of, write_library
from cudal2_agent.agent.library.preparing import library_cache, prepare
from cudal2_agent.agent.model_tuning.judged_products import judge_products
from cudal2_agent.contract.records.task import Activation, Arch, ElementType, GemmTask, Layout
from cudal2_agent.contract.settings.settings import load_settings
from tests.doubles.libraries import library_entry

pytestmark = pytest.mark.gpu

M, N, K = 64, 128, 256
OF_GATE = {"layout": Layout.TN, "element": ElementType.BF16, "arch": Arch.SM_90A, "gated": True}
TASKS = [GemmTask(m=M, n=N, k=K, activation=one, **OF_GATE) for one in Activation]


@pytest.fixture
def library(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
    """As if it had been measured here. Its kernels are built."""
    identity = CudaPlatform().identity(0)
    if identity.arch is not Arch.SM_90A:
        pytest.skip("gated kernels need sm_90a")
    monkeypatch.setenv("CUDAL2_HOME", str(tmp_path / "home"))
    before, entries = torch_session.service(), []
    for task in TASKS:
        entry = library_entry(task, chip=identity.gpu)
        here = entry.evaluation.model_copy(update={"environment": environment_of(identity)})
        entries.append(entry.model_copy(update={"evaluation": here}))
    ordered = tuple(sorted(entries, key=lambda one: one.id))
    for one in prepare(ordered, load_settings(), identity.sms):
        assert one.status == "built", one.message
    path = tmp_path / "library.jsonl.gz"
    write_library(path, manifest_of(ordered, name="by-hand", chip=identity.gpu), ordered)
    torch._dynamo.reset()
    yield path
    torch_session.disable()
    torch_session.use_service(before)
    torch._dynamo.reset()


def drawn(*sizes: int) -> torch.Tensor:
    return torch.randn(*sizes, device="cuda").bfloat16()


def exact(activation: Activation, x: torch.Tensor, gate: torch.Tensor, up: torch.Tensor) -> torch.Tensor:
    return APPLIED[activation](x.double() @ gate.double().t()) * (x.double() @ up.double().t())


def assert_close(found: torch.Tensor, wanted: torch.Tensor) -> None:
    """One rounding to bfloat16, and sums in f32 of values of about 1."""
    assert ((found.double() - wanted).abs() <= 2**-8 * wanted.abs() + 1e-3).all(), (found.double() - wanted).abs().max()


def served() -> int:
    return sum(cudal2.status().served.values())


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
    held, platform = open_library(library), CudaPlatform()
    prepared = PreparedKernels(library_cache(load_settings()))
    rows = list(judge_products(list(held), prepared, platform, platform.identity(0)))
    assert [row.fault for row in rows] == [""] * len(held)
    for row in rows:
        print(f"{row.task.shape}{row.task.epilogue}: {row.time_us:.2f} us, {row.speedup.ratio:.3f} of PyTorch's")
