"""The batch-invariant mode on a real GPU: bits across M, in eager calls, streams and graphs; gradients; and times, printed.

`pytest -m gpu -s tests/gpu/programs/test_batch_invariant_gpu.py` prints how often `torch.mm` differs, and what the mode costs.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import NamedTuple

import pytest
import torch
import torch.nn.functional as F

import cudal2
from cudal2.library.prepared_kernels import CachedKernel
from cudal2.torch import torch_session
from cudal2_agent.agent.library.invariant_building import prepare_invariant
from cudal2_agent.contract.errors import UsageError
from cudal2_agent.contract.plan.chip import LIMITS, REFERENCE_CHIPS
from cudal2_agent.contract.plan.resolve import resolve
from cudal2_agent.contract.records.build import Built
from cudal2_agent.contract.records.task import Arch, ElementType, GemmTask, Layout
from cudal2_agent.contract.settings.options import CompileOptions
from cudal2_agent.contract.settings.settings import load_settings
from cudal2_agent.policies.schedule.families.wgmma_tma.family import WgmmaTma
from cudal2_agent.policies.schedule.families.wgmma_tma.schedule import WgmmaTmaSchedule
from cudal2_agent.sandbox.building.builder import Builder

pytestmark = pytest.mark.gpu

MOST = 300
TIMED = (1, 16, 64, 256, 1024, 8192)
IN_A_GRAPH, REPLAYS = 20, 10
WIDE = WgmmaTmaSchedule(consumers=1, atoms=1, block_n=128, block_k=64, stages=4, programmatic=False)
OTHERS: tuple[dict[str, object], ...] = (
    {"consumers": 2},
    {"consumers": 2, "atoms": 2},
    {"block_k": 128},
    *({"block_n": width} for width in (8, 16, 32, 64, 256)),
    *({"block_n": width, "turned": True} for width in (16, 32, 64, 128)),
)


class Weight(NamedTuple):
    """A linear layer's weight is by columns: it is stored N×K."""

    n: int
    k: int
    dtype: torch.dtype = torch.bfloat16
    by_columns: bool = True

    def drawn(self) -> torch.Tensor:
        return (cancelling(self.k, self.n).t().contiguous().t() if self.by_columns else cancelling(self.k, self.n)).to(
            self.dtype
        )


WEIGHTS = (
    Weight(4096, 4096),
    Weight(1024, 4096),
    Weight(14336, 4096),
    Weight(4096, 14336, torch.float16),
    Weight(4096, 1024, by_columns=False),
    Weight(50257, 768),
    Weight(333, 777),
    Weight(8, 8),
    Weight(1, 2048),
)


def cancelling(k: int, n: int) -> torch.Tensor:
    """A B whose rows repeat, but for the last four."""
    half = (k - 4) // 2
    rows = torch.randn(half, n, device="cuda")
    return torch.cat((rows, rows, torch.randn(k - 2 * half, n, device="cuda")))


def rows_for(weight: Weight, m: int) -> torch.Tensor:
    """An A for such a B: all but the last products cancel, so that the bits of D are those of rounded partial sums."""
    half = (weight.k - 4) // 2
    left = torch.randn(m, half, device="cuda")
    last = torch.randn(m, weight.k - 2 * half, device="cuda") * 2.0**-12
    return torch.cat((left, -left, last), 1).to(weight.dtype)


@pytest.fixture(autouse=True)
def mode() -> Iterator[None]:
    arch = torch_session.service().platform.identity(0).arch
    assert arch is not None
    done = prepare_invariant(arch, load_settings())
    assert done.status in ("built", "ready"), done
    torch.manual_seed(11)
    with cudal2.enable(batch_invariant=True):
        yield
    assert cudal2.status().batch_invariant is None


@pytest.mark.parametrize("weight", WEIGHTS, ids=str)
def test_a_row_has_equal_bits_for_every_m(weight: Weight) -> None:
    b, a = weight.drawn(), rows_for(weight, 2 * MOST)
    whole = torch.mm(a, b)
    for m in range(1, MOST + 1):
        for first in (0, 2 * MOST - m, m):
            assert torch.equal(torch.mm(a[first : first + m], b), whole[first : first + m]), (m, first)
    status = cudal2.status().batch_invariant
    assert status is not None
    assert len(status.served) == 1
    cudal2.disable()
    own = torch.mm(a, b)
    differing = sum(not torch.equal(torch.mm(a[:m], b), own[:m]) for m in range(1, MOST + 1))
    cudal2.enable(batch_invariant=True)
    print(f"\n{weight}: {next(iter(status.served))}; torch.mm differs at {differing} of {MOST} M")


@pytest.mark.parametrize("weight", WEIGHTS, ids=str)
def test_every_tile_and_layout_gives_the_same_bits(weight: Weight) -> None:
    b, a = weight.drawn(), rows_for(weight, 4096)
    whole = torch.mm(a, b)
    for m in (1, 16, 17, 64, 65, 1024, 1025, 2048):
        assert torch.equal(torch.mm(a[:m], b), whole[:m]), m
        assert torch.equal(torch.mm(a[:m].t().contiguous().t(), b), whole[:m]), ("A by columns", m)
        assert torch.equal(torch.mm(torch.cat((a[:m], a[:m]), 1)[:, : weight.k], b), whole[:m]), ("a slice", m)
        assert torch.equal(torch.bmm(a[None, :m], b[None])[0], whole[:m]), ("bmm", m)
        assert torch.equal(F.linear(a[:m], b.t()), whole[:m]), ("linear", m)


@pytest.mark.parametrize("weight", WEIGHTS[:4], ids=str)
def test_tiles_and_instructions_of_all_widths_give_the_same_bits(weight: Weight, tmp_path: Path) -> None:
    """With swapped operands too. `WgmmaTma.summation` states it."""
    if torch_session.service().platform.identity(0).arch is not Arch.SM_90A:
        pytest.skip("wgmma is of sm_90a")
    b, a = weight.drawn(), rows_for(weight, 64)
    wide = by_schedule({}, a, b, tmp_path)
    for change in OTHERS:
        assert torch.equal(by_schedule(change, a, b, tmp_path), wide), change


def by_schedule(change: dict[str, object], a: torch.Tensor, b: torch.Tensor, folder: Path) -> torch.Tensor:
    """The product by a kernel like `WIDE`. B lies by columns."""
    (m, k), n = a.shape, b.shape[1]
    element = ElementType.BF16 if a.dtype is torch.bfloat16 else ElementType.F16
    task = GemmTask(m=m, n=n, k=k, layout=Layout.TN, element=element, arch=Arch.SM_90A)
    candidate = WgmmaTma().write(WIDE.model_copy(update=change), task)
    built = Builder(CompileOptions(cache_dir=str(folder)), REFERENCE_CHIPS[task.arch]).build_one(candidate, task)
    assert isinstance(built, Built), built
    platform = torch_session.service().platform
    plan = resolve(candidate.plan, task, LIMITS[task.arch], platform.identity(0).sms)
    d = a.new_empty(m, n)
    kernel = platform.load(0, CachedKernel(Path(built.artifact_path).read_bytes(), plan), task)
    kernel.launch(a.data_ptr(), b.data_ptr(), d.data_ptr(), platform.stream(0))
    return d


@pytest.mark.parametrize("weight", WEIGHTS, ids=str)
def test_products_and_gradients_agree_with_float64(weight: Weight) -> None:
    a = torch.randn(96, weight.k, device="cuda", dtype=weight.dtype).requires_grad_()
    w = (torch.randn(weight.n, weight.k, device="cuda") * weight.k**-0.5).to(weight.dtype).requires_grad_()
    out = F.linear(a, w, torch.ones(weight.n, device="cuda", dtype=weight.dtype))
    grad = torch.randn_like(out)
    out.backward(grad)
    exact_a, exact_w, exact_grad = a.detach().double().cpu(), w.detach().double().cpu(), grad.double().cpu()
    bound = 2.0**-6 if weight.dtype is torch.bfloat16 else 2.0**-9
    for found, wanted in (
        (out, exact_a @ exact_w.t() + 1),
        (a.grad, exact_grad @ exact_w),
        (w.grad, exact_grad.t() @ exact_a),
    ):
        assert found is not None
        assert (found.detach().double().cpu() - wanted).abs().max() <= bound * wanted.abs().max()


def test_streams_threads_and_graphs_give_the_same_bits() -> None:
    weight = WEIGHTS[0]
    b, a = weight.drawn(), rows_for(weight, MOST)
    whole = torch.mm(a, b)
    wrong: list[int] = []

    def work(seed: int) -> None:
        with torch.cuda.stream(torch.cuda.Stream()):
            for m in range(1 + seed, MOST, 7):
                if not torch.equal(torch.mm(a[:m], b), whole[:m]):
                    wrong.append(m)

    torch.cuda.synchronize()
    threads = [threading.Thread(target=work, args=(seed,)) for seed in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert not wrong
    graph, rows = torch.cuda.CUDAGraph(), a[:123].clone()
    with torch.cuda.graph(graph):
        out = torch.mm(rows, b)  # a size that is first seen inside the capture
    rows.copy_(a[100:223])
    graph.replay()
    assert torch.equal(out, whole[100:223])


def test_another_type_is_refused() -> None:
    with pytest.raises(UsageError, match="allow_other=True"):
        torch.mm(torch.ones(2, 2, device="cuda"), torch.ones(2, 2, device="cuda"))
    with pytest.raises(UsageError, match="another type"):
        torch.mm(torch.ones(2, 2, device="cuda").half(), torch.ones(2, 2, device="cuda").half(), out_dtype=torch.float32)


def test_compiled_code_is_served() -> None:
    weight = WEIGHTS[1]
    b, a = weight.drawn(), rows_for(weight, 64)
    compiled = torch.compile(lambda rows: torch.mm(rows, b), dynamic=False)
    assert torch.equal(compiled(a), torch.mm(a, b))
    assert torch.equal(compiled(a[:7]), torch.mm(a, b)[:7])


@pytest.mark.parametrize("weight", WEIGHTS[:6], ids=str)
def test_times_are_printed(weight: Weight) -> None:
    b = weight.drawn()
    print(f"\n{weight}: M, us of the mode, us of torch.mm")
    for m in TIMED:
        a = rows_for(weight, m)
        ours = time_us(lambda: torch.mm(a, b))  # noqa: B023
        cudal2.disable()
        own = time_us(lambda: torch.mm(a, b))  # noqa: B023
        cudal2.enable(batch_invariant=True)
        print(f"{m:6} {ours:9.2f} {own:9.2f} {ours / own:6.2f}x")
        assert ours > 0


def time_us(call: Callable[[], torch.Tensor]) -> float:
    """Median time of one call, of those in a graph that is replayed."""
    call()
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        for _ in range(IN_A_GRAPH):
            call()
    times = []
    for _ in range(REPLAYS):
        begin, end = torch.cuda.Event(enable_timing=True), torch.cuda.Event(enable_timing=True)
        begin.record()
        graph.replay()
        end.record()
        end.synchronize()
        times.append(begin.elapsed_time(end) * 1000 / IN_A_GRAPH)
    return sorted(times)[REPLAYS // 2]
