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
from collections.abc import Iterator
from pathlib import Path

import pytest
import torch

import cudal2
from contract.library import LibraryEntry
from contract.task import ElementType, Layout
from cudal2.dispatch.causes import FallbackCause
from cudal2.dispatch.decision import Choice
from cudal2.library.kernel_library import KernelLibrary
from cudal2.torch import torch_session
from cudal2.torch.product_service import DeviceDispatch, ProductService

pytestmark = pytest.mark.gpu

ROOT = Path(__file__).resolve().parents[2]
ENTRIES = 12  # of the library, for tests that launch several
SECONDS = 60
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
    found = service.device(0)
    if not isinstance(found, DeviceDispatch):
        pytest.skip(f"{found.sentence}: {service.notes()}")
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


def operands(entry: LibraryEntry, seed: int = 0) -> tuple[torch.Tensor, torch.Tensor]:
    """Operands in the memory layout of the entry's task."""
    task = entry.task
    dtype = torch.float16 if task.element is ElementType.F16 else torch.bfloat16
    generator = torch.Generator(device="cuda").manual_seed(seed)

    def drawn(rows: int, columns: int) -> torch.Tensor:
        return torch.randn(rows, columns, device="cuda", generator=generator).to(dtype)

    a = drawn(task.k, task.m).t() if task.layout is Layout.NT else drawn(task.m, task.k)
    b = drawn(task.n, task.k).t() if task.layout is Layout.TN else drawn(task.k, task.n)
    return a, b


def assert_right(out: torch.Tensor | None, a: torch.Tensor, b: torch.Tensor) -> None:
    assert out is not None
    expected = a.float() @ b.float()
    torch.testing.assert_close(out.float(), expected, rtol=1e-2, atol=1e-3 * float(expected.abs().max()))


def test_entries_agree_with_torch(service: ProductService, entries: list[LibraryEntry]) -> None:
    for entry in entries:
        a, b = operands(entry)
        assert_right(service.product(a, b), a, b)
        assert service.served()[entry.id] >= 1, entry.task.shape


def test_mm_is_replaced_and_put_back(service: ProductService, entries: list[LibraryEntry]) -> None:
    a, b = operands(entries[0])
    before = sum(service.served().values())
    with cudal2.enable():
        assert_right(torch.mm(a, b), a, b)
        assert_right(a @ b, a, b)
    torch.mm(a, b)
    assert sum(service.served().values()) == before + 2


def test_what_has_no_entry_is_torch_s_own(service: ProductService, on_device: DeviceDispatch) -> None:
    a, b = torch.randn(72, 88, device="cuda").half(), torch.randn(88, 104, device="cuda").half()
    assert on_device.dispatcher.decide(72, 104, 88, 0).choice is Choice.HEURISTIC
    expected = torch.mm(a, b)
    with cudal2.enable():
        assert torch.equal(torch.mm(a, b), expected)
    assert service.fallbacks()[FallbackCause.NO_ENTRY] == 1


@pytest.mark.usefixtures("service")
def test_errors_of_devices_are_torch_s_own() -> None:
    a, b = torch.randn(64, 64, device="cuda").half(), torch.randn(64, 64).half()
    with pytest.raises(RuntimeError) as plain:
        torch.mm(a, b)
    with cudal2.enable(), pytest.raises(RuntimeError) as served:
        torch.mm(a, b)
    assert str(served.value) == str(plain.value)


@pytest.mark.usefixtures("service")
def test_opcheck_passes_on_the_gpu(entries: list[LibraryEntry]) -> None:
    a, b = (one.requires_grad_() for one in operands(entries[0]))
    outcomes = torch.library.opcheck(torch.ops.cudal2.matmul.default, (a, b))
    assert set(outcomes.values()) == {"SUCCESS"}


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


def test_a_graph_holds_kernels_that_are_ready(service: ProductService, entries: list[LibraryEntry]) -> None:
    for entry in entries:
        a, b = operands(entry)
        graph, before = torch.cuda.CUDAGraph(), sum(service.served().values())
        with cudal2.enable():
            torch.mm(a, b)
            torch.cuda.synchronize()
            with torch.cuda.graph(graph):
                out = torch.mm(a, b)
        assert sum(service.served().values()) == before + 2
        for seed in (1, 2):
            new_a, new_b = operands(entry, seed)
            a.copy_(new_a)
            b.copy_(new_b)
            graph.replay()
            torch.cuda.synchronize()
            assert_right(out, a, b)


def test_a_capture_with_a_cold_service_falls_back(service: ProductService, library: KernelLibrary) -> None:
    entry = next(iter(library))
    a, b = operands(entry)
    torch.mm(a, b)  # cuBLAS allocates its own workspace before
    graph = torch.cuda.CUDAGraph()
    with cudal2.enable(), torch.cuda.graph(graph):
        out = torch.mm(a, b)
    graph.replay()
    assert_right(out, a, b)
    assert service.served() == {}


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
    assert service.served()[entries[0].id] > 1


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
