"""The library in PyTorch on a real GPU: its entries against PyTorch's product, streams, graphs, threads, compiled code, errors.

Kernels are prepared first, so that nothing waits for a compiler in between:
`cudal2-agent library prepare`.
"""

from __future__ import annotations

import os
import subprocess
import sys
import threading
import time
from collections import Counter
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
import torch
from torch.autograd import forward_ad

import cudal2
from cudal2.dispatch.decision import Choice, FallbackCause
from cudal2.dispatch.dispatcher import kind_code
from cudal2.library.kernel_library import KernelLibrary
from cudal2.torch import aten_override, compiled_build, torch_session
from cudal2.torch.device_dispatch import DeviceDispatch
from cudal2.torch.kernel_registrations import others, registered
from cudal2.torch.product_service import ProductService
from cudal2_agent.agent.library.algorithms.product_graphs import drawn
from cudal2_agent.contract.records.library import LibraryEntry

pytestmark = pytest.mark.gpu

ROOT = Path(__file__).resolve().parents[2]
ENTRIES = 12  # of the library, for tests that launch several
LENT = 8  # kernels for other M, a few seconds each: compiler and emulator
SECONDS = 60
find_compiled = compiled_build.find
BUILD_S = 600.0


@pytest.fixture
def service() -> Iterator[ProductService]:
    """A service with counts of its own, over the library of this GPU."""
    before = torch_session.service()
    fresh = torch_session._service_of(torch_session._shipped)
    torch_session.use_service(fresh)
    yield fresh
    torch_session.disable()
    torch_session.use_service(before)


@pytest.fixture
def on_device(service: ProductService) -> DeviceDispatch:
    found = service.devices.find(0)
    if not isinstance(found, DeviceDispatch):
        pytest.skip(f"{found.sentence}: {service.notices.texts()}")
    return found


@pytest.fixture
def library(on_device: DeviceDispatch) -> KernelLibrary:
    return on_device.library


@pytest.fixture
def entries(service: ProductService, on_device: DeviceDispatch) -> list[LibraryEntry]:
    """Entries that may be chosen here, spread over the library, built and loaded."""
    fit = [
        entry for entry in on_device.library if on_device.identity.measured(entry.evaluation.environment) is None and entry.wins
    ]
    if not fit:
        pytest.skip("no entry was measured with this driver; calibrate first")
    picked = sorted(fit, key=lambda entry: entry.task.flops)[:: max(1, len(fit) // ENTRIES)]
    for entry in picked:
        service.product(*operands(entry))
    assert service.builds.wait(BUILD_S)
    assert service.builds.failed() == {}
    return picked


def use_language(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """Replace operators by kernels in a language from now on. The ones in C++ are compiled once, into the service's cache."""
    folder = torch_session.service().prepared.folder
    if name == "C++" and find_compiled(folder, "CUDA") is None:
        compiled_build.build(folder, "CUDA")
    monkeypatch.setattr(compiled_build, "find", find_compiled if name == "C++" else lambda *_: None)
    aten_override.unregister()
    with cudal2.enable():
        assert cudal2.status().languages == (name,), cudal2.status()


@pytest.fixture(params=["Python", "C++"])
def language(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> Iterator[str]:
    """Runs a test with the replaced kernels in either language."""
    use_language(request.param, monkeypatch)
    yield str(request.param)
    aten_override.unregister()


def operands(entry: LibraryEntry, seed: int = 0) -> tuple[torch.Tensor, torch.Tensor]:
    """Operands in the memory layout of the entry's task."""
    return drawn(entry.task, seed, "cuda")


def assert_right(out: torch.Tensor | None, a: torch.Tensor, b: torch.Tensor) -> None:
    assert out is not None
    expected = a.float() @ b.float()
    torch.testing.assert_close(out.float(), expected, rtol=1e-2, atol=1e-3 * float(expected.abs().max()))


def test_entries_agree_with_torch(service: ProductService, entries: list[LibraryEntry]) -> None:
    for entry in entries:
        a, b = operands(entry)
        assert_right(service.product(a, b), a, b)
        assert service.counts.served()[entry.id] >= 1, entry.task.shape


def test_entries_are_lent_to_fewer_rows(
    service: ProductService, on_device: DeviceDispatch, entries: list[LibraryEntry]
) -> None:
    """Each kernel is built and proved for its M first. Nothing is written behind its rows."""
    decided = [
        decision
        for entry in entries
        for m in (entry.task.m - 1, entry.task.m * 7 // 8)
        if (decision := on_device.dispatcher.decide(m, *_rest(entry))).choice is Choice.PADDED_M
    ][:LENT]
    if not decided:
        pytest.skip("the rule was not measured with this driver")
    for decision in decided:
        assert decision.task is not None
        service.product(*drawn(decision.task, 0, "cuda"))
    assert service.builds.wait(BUILD_S)
    assert service.builds.failed() == {}
    for decision in decided:
        assert decision.entry is not None
        assert decision.task is not None
        a, b = drawn(decision.task, 0, "cuda")
        before = service.counts.served().get(decision.entry.id, 0)
        memory = torch.full((decision.entry.task.m, decision.task.n), 7.0, device="cuda", dtype=a.dtype)
        assert service.product(a, b, memory[: decision.task.m]) is not None, decision.task.shape
        assert_right(memory[: decision.task.m], a, b)
        assert torch.equal(memory[decision.task.m :], torch.full_like(memory[decision.task.m :], 7.0)), decision.task.shape
        assert service.counts.served()[decision.entry.id] == before + 1


def _rest(entry: LibraryEntry) -> tuple[int, int, int]:
    task = entry.task
    return task.n, task.k, kind_code(task.layout, task.element, task.accumulate)


@pytest.mark.usefixtures("language")
def test_mm_is_replaced_and_put_back(service: ProductService, entries: list[LibraryEntry]) -> None:
    a, b = operands(entries[0])
    before = sum(service.counts.served().values())
    with cudal2.enable():
        assert_right(torch.mm(a, b), a, b)
        assert_right(a @ b, a, b)
    torch.mm(a, b)
    assert sum(service.counts.served().values()) == before + 2


@pytest.mark.usefixtures("language")
def test_what_has_no_entry_is_torch_s_own(service: ProductService, on_device: DeviceDispatch) -> None:
    a, b = torch.randn(72, 88, device="cuda").half(), torch.randn(88, 104, device="cuda").half()
    assert on_device.dispatcher.decide(72, 104, 88, 0).choice is Choice.HEURISTIC
    expected = torch.mm(a, b)
    with cudal2.enable():
        assert torch.equal(torch.mm(a, b), expected)
        assert torch.equal(torch.mm(a, b), expected)
    assert service.counts.fallbacks()[FallbackCause.NO_ENTRY] == 2


@pytest.mark.usefixtures("service", "language")
def test_errors_of_devices_are_torch_s_own() -> None:
    a, b = torch.randn(64, 64, device="cuda").half(), torch.randn(64, 64).half()
    with pytest.raises(RuntimeError) as plain:
        torch.mm(a, b)
    with cudal2.enable(), pytest.raises(RuntimeError) as served:
        torch.mm(a, b)
    assert str(served.value) == str(plain.value)


@pytest.mark.usefixtures("service", "language")
def test_errors_of_sizes_types_and_memory_are_torch_s_own() -> None:
    half = torch.randn(64, 64, device="cuda").half()
    huge = half[:1, :1].expand(2**21, 1), half[:1, :1].expand(1, 2**21)  # a result of 8 TiB
    for a, b in ((half, half[:63]), (half, half.float()), (half[0], half), huge):
        with pytest.raises(RuntimeError) as plain:
            torch.mm(a, b)
        with cudal2.enable(), pytest.raises(RuntimeError) as left:
            torch.mm(a, b)
        assert type(left.value) is type(plain.value)
        told, expected = (str(error.value).partition(" GPU ")[0] for error in (left, plain))  # then the memory in use
        assert told == expected


def misaligned(matrix: torch.Tensor) -> torch.Tensor:
    """The same matrix in the same layout, begun two bytes late."""
    row_major = matrix if matrix.is_contiguous() else matrix.t()
    memory = torch.empty(row_major.numel() + 1, device="cuda", dtype=matrix.dtype)
    placed = memory[1:].view(row_major.shape).copy_(row_major)
    return placed if row_major is matrix else placed.t()


def test_both_languages_count_the_same(
    service: ProductService, entries: list[LibraryEntry], monkeypatch: pytest.MonkeyPatch
) -> None:
    """Entries, a type that none has, an operand at an odd address, deterministic algorithms, a bias."""
    pairs = [operands(entry) for entry in entries]
    a, b = pairs[0]

    def counted(name: str) -> Counter[str]:
        use_language(name, monkeypatch)
        before = Counter(service.counts.served()) + Counter(service.counts.fallbacks())
        with cudal2.enable():
            for left, right in pairs * 2:
                torch.mm(left, right)
            torch.mm(a.float(), b.float())
            torch.mm(misaligned(a), b)
            torch.use_deterministic_algorithms(True, warn_only=True)
            try:
                torch.mm(a, b)
            finally:
                torch.use_deterministic_algorithms(False)
            torch.addmm(torch.zeros(b.shape[1], device="cuda", dtype=a.dtype), a, b)
        return Counter(service.counts.served()) + Counter(service.counts.fallbacks()) - before

    in_python, in_cpp = counted("Python"), counted("C++")
    aten_override.unregister()
    assert in_cpp == in_python
    causes = (FallbackCause.TYPE, FallbackCause.UNALIGNED, FallbackCause.DETERMINISTIC, FallbackCause.BIAS)
    assert [in_cpp[cause] for cause in causes] == [1] * 4
    assert sum(in_cpp.values()) == 2 * len(pairs) + 4


@pytest.mark.usefixtures("language")
def test_mm_on_two_streams_from_many_threads(service: ProductService, entries: list[LibraryEntry]) -> None:
    """16 threads on 2 streams for 10 s. In turn: a served product, and a product that is left with its gradient."""
    streams = [torch.cuda.Stream() for _ in range(2)]
    pairs = [operands(entry) for entry in entries]
    torch.cuda.synchronize()
    wrong: list[str] = []
    served, left = [0] * 16, [0] * 16
    before = sum(service.counts.served().values())
    end = time.monotonic() + 10

    def work(number: int) -> None:
        with torch.cuda.stream(streams[number % 2]):
            while time.monotonic() < end and not wrong:
                a, b = pairs[(number + served[number]) % len(pairs)]
                if not torch.equal(torch.mm(a, b), first[(number + served[number]) % len(pairs)]):
                    wrong.append(f"{tuple(a.shape)} by {tuple(b.shape)}")
                served[number] += 1
                x = torch.ones(3 + left[number] % 50, 4, device="cuda", requires_grad=True)
                torch.mm(x, torch.full((4, 5), 2.0, device="cuda")).sum().backward()
                if x.grad is None or not bool((x.grad == 10).all()):
                    wrong.append("a gradient")
                left[number] += 1

    with cudal2.enable():
        first = [torch.mm(a, b) for a, b in pairs]
        torch.cuda.synchronize()
        threads = [threading.Thread(target=work, args=(number,)) for number in range(16)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
    assert wrong == []
    assert sum(service.counts.served().values()) == before + len(pairs) + sum(served)
    assert service.counts.fallbacks()[FallbackCause.TYPE] == 2 * sum(left), "each has a product and a gradient"


@pytest.mark.usefixtures("service")
def test_opcheck_passes_on_the_gpu(entries: list[LibraryEntry]) -> None:
    a, b = (one.requires_grad_() for one in operands(entries[0]))
    outcomes = torch.library.opcheck(torch.ops.cudal2.matmul.default, (a, b))
    assert set(outcomes.values()) == {"SUCCESS"}


def _derivatives(product: Callable[[torch.Tensor, torch.Tensor], torch.Tensor], a: torch.Tensor, b: torch.Tensor) -> Any:
    """Tangents, gradients and gradients per sample, in f16 or bf16."""
    with forward_ad.dual_level():
        dual = forward_ad.unpack_dual(product(forward_ad.make_dual(a, torch.ones_like(a)), b))
    tangent = torch.func.jvp(product, (a, b), (torch.ones_like(a), torch.ones_like(b)))[1]
    gradients = torch.func.grad(lambda x, y: product(x, y).float().sum(), (0, 1))(a, b)
    samples = torch.vmap(torch.func.grad(lambda y, x: product(x, y).float().sum()), (None, 0))(b, torch.stack([a, -a]))
    return [*dual, tangent, *gradients, samples]


def test_derivatives_are_those_of_torch(entries: list[LibraryEntry], service: ProductService, language: str) -> None:  # noqa: ARG001
    for entry in [one for one in entries if one.task.flops < 1e11][:4]:
        a, b = operands(entry)
        expected = _derivatives(torch.matmul, a, b)
        for product in (cudal2.matmul, torch.ops.cudal2.matmul.default):
            for found, one in zip(_derivatives(product, a, b), expected, strict=True):
                assert torch.equal(found, one), "every one of them is PyTorch's own product"
        served = sum(service.counts.served().values())
        with cudal2.enable():
            for found, one in zip(_derivatives(torch.matmul, a, b), expected, strict=True):
                torch.testing.assert_close(found, one, rtol=2e-2, atol=2e-2 * float(one.abs().max()))
        assert sum(service.counts.served().values()) > served


def test_nobody_else_has_replaced_kernels_in_this_pytorch() -> None:
    """Where PyTorch's build says that it registered its own kernels, as `kernel_registrations` knows them."""
    assert registered("mm", "CUDA") != []
    assert [name for name in ("mm", "addmm", "matmul", "linear") if others(name, "CUDA")] == []


def test_another_library_on_the_cuda_key(entries: list[LibraryEntry], service: ProductService, language: str) -> None:  # noqa: ARG001
    def mark(x: torch.Tensor, y: torch.Tensor) -> torch.Tensor:
        return x.new_full((x.shape[0], y.shape[1]), 7.0)

    other = torch.library.Library("aten", "IMPL")
    small = torch.ones(2, 3, device="cuda"), torch.ones(3, 2, device="cuda")
    a, b = operands(entries[0])
    expected = torch.bmm(a[None], b[None])[0]
    cudal2.enable()
    other.impl("mm", mark, "CUDA")
    assert torch.mm(a, b)[0, 0] == torch.mm(*small)[0, 0] == 7
    assert "aten::mm was replaced again, at " in str(cudal2.status())
    cudal2.enable()
    torch.testing.assert_close(torch.mm(a, b), expected, rtol=2e-2, atol=2e-2 * float(expected.abs().max()))
    assert torch.mm(*small)[0, 0] == 7
    other._destroy()
    assert torch.mm(*small)[0, 0] == 3
    cudal2.disable()
    assert torch.mm(*small)[0, 0] == 3


def test_a_product_follows_what_its_stream_did_before(service: ProductService, entries: list[LibraryEntry]) -> None:
    """The operand is written late on the same stream: a launch elsewhere would read what was there before."""
    for entry in entries:
        a, b = operands(entry)
        wanted = a.clone()
        stream = torch.cuda.Stream()
        stream.wait_stream(torch.cuda.current_stream())
        with torch.cuda.stream(stream):
            a.zero_()
            torch.cuda._sleep(2_000_000)
            a.copy_(wanted)
            out = service.product(a, b)
        torch.cuda.current_stream().wait_stream(stream)
        assert_right(out, wanted, b)


@pytest.mark.usefixtures("language")
def test_a_graph_holds_kernels_that_are_ready(service: ProductService, entries: list[LibraryEntry]) -> None:
    for entry in entries:
        a, b = operands(entry)
        graph, before = torch.cuda.CUDAGraph(), sum(service.counts.served().values())
        with cudal2.enable():
            torch.mm(a, b)
            torch.cuda.synchronize()
            with torch.cuda.graph(graph):
                out = torch.mm(a, b)
        assert sum(service.counts.served().values()) == before + 2
        for seed in (1, 2):
            new_a, new_b = operands(entry, seed)
            a.copy_(new_a)
            b.copy_(new_b)
            graph.replay()
            torch.cuda.synchronize()
            assert_right(out, a, b)


@pytest.mark.usefixtures("language")
def test_a_capture_with_a_cold_service_falls_back(service: ProductService, library: KernelLibrary) -> None:
    entry = next(iter(library))
    a, b = operands(entry)
    torch.mm(a, b)  # cuBLAS allocates its own workspace before
    graph = torch.cuda.CUDAGraph()
    with cudal2.enable(), torch.cuda.graph(graph):
        out = torch.mm(a, b)
    graph.replay()
    assert_right(out, a, b)
    assert service.counts.served() == {}


def test_many_threads_on_two_streams(service: ProductService, entries: list[LibraryEntry]) -> None:
    """32 threads on 2 streams for a minute; every product is compared with the first one of its operands, bit for bit."""
    streams = [torch.cuda.Stream() for _ in range(2)]
    pairs = [operands(entry) for entry in entries]
    torch.cuda.synchronize()
    first = [service.product(a, b) for a, b in pairs]
    torch.cuda.synchronize()
    wrong: list[str] = []
    end = time.monotonic() + SECONDS

    def work(number: int) -> None:
        with torch.cuda.stream(streams[number % 2]):
            while time.monotonic() < end and not wrong:
                index = number % len(pairs)
                out = service.product(*pairs[index])
                if out is None or first[index] is None or not torch.equal(out, first[index]):
                    wrong.append(entries[index].task.shape)
                number += 1

    threads = [threading.Thread(target=work, args=(number,)) for number in range(32)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert wrong == []


def test_inductor_times_the_library_as_a_choice(service: ProductService, entries: list[LibraryEntry]) -> None:
    a, b = operands(entries[0])
    assert cudal2.enable_inductor() == ""
    try:
        compiled = torch.compile(lambda x, y: torch.mm(x, y), options={"fx_graph_cache": False})
        assert_right(compiled(a, b), a, b)
    finally:
        cudal2.disable_inductor()
    assert service.counts.served()[entries[0].id] > 1


@pytest.mark.skipif(torch.cuda.device_count() < 2, reason="needs two GPUs")
def test_each_device_has_its_own_kernels(service: ProductService, entries: list[LibraryEntry]) -> None:
    for device in (0, 1):
        a, b = (one.to(f"cuda:{device}") for one in operands(entries[0]))
        assert_right(service.product(a, b), a, b)  # device 0 is the current one
    a, b = operands(entries[0])
    with cudal2.enable(), pytest.raises(RuntimeError, match="same device"):
        torch.mm(a, b.to("cuda:1"))


def test_a_poisoned_context_is_an_error_and_no_product() -> None:
    """In a child process: after an illegal access every product raises, with the library enabled as without."""
    code = """
import torch, cudal2
cudal2.enable()
a = torch.randn(64, 64, device="cuda").half()
a @ a
torch.cuda._sleep(1000)
try:
    torch.zeros(4, device="cuda")[torch.tensor([10**6], device="cuda")]
    torch.cuda.synchronize()
except RuntimeError:
    pass
try:
    print((a @ a).sum().item())
except RuntimeError as error:
    print("raised", str(error).splitlines()[0])
"""
    environment = os.environ | {"PYTHONPATH": os.pathsep.join([str(ROOT), *sys.path])}
    done = subprocess.run(
        [sys.executable, "-c", code], env=environment, capture_output=True, text=True, check=False, timeout=300
    )
    assert done.stdout.startswith("raised"), done.stdout + done.stderr
