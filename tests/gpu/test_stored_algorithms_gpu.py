"""Stored algorithms of cuBLASLt on a real GPU: products in all layouts and types, streams, graphs, threads, counts and times.

The algorithms are cuBLASLt's suggestions here, read by nvmath's bindings as AutoTuning reads them. Nothing is searched first.
`pytest -s tests/gpu/test_stored_algorithms_gpu.py` prints the times.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator
from datetime import date
from pathlib import Path
from typing import Any

import pytest
import torch

import cudal2
from cudal2.dispatch.decision import FallbackCause, GpuIdentity
from cudal2.torch import aten_override, compiled_build, torch_session
from cudal2.torch.gpu_platform import CudaPlatform
from cudal2_agent.agent.library.algorithms.algorithm_check import DRAWS, _times_us, fault_of, run_algorithm
from cudal2_agent.agent.library.algorithms.algorithm_choice import why_not_run
from cudal2_agent.agent.library.algorithms.product_graphs import drawn
from cudal2_agent.contract.errors import LauncherError
from cudal2_agent.contract.records.library import StoredAlgorithm
from cudal2_agent.contract.records.task import ElementType, GemmTask, Layout
from tests.doubles.libraries import write_entries

pytestmark = pytest.mark.gpu

TASK = GemmTask(m=512, n=1024, k=2048)
SPLIT = GemmTask(m=64, n=128, k=16384)  # where cuBLASLt splits K
TIMED = (
    GemmTask(m=2048, n=8192, k=1024, layout=Layout.TN),
    GemmTask(m=16384, n=2048, k=512, layout=Layout.NT),
    GemmTask(m=4096, n=4096, k=512),
)
MAX_TIMED = 24  # suggestions of a task
find_compiled = compiled_build.find


@pytest.fixture(scope="module")
def platform() -> CudaPlatform:
    found = CudaPlatform()
    if found.missing():
        pytest.skip(found.missing())
    return found


@pytest.fixture(scope="module")
def identity(platform: CudaPlatform) -> GpuIdentity:
    found = platform.identity(0)
    assert found.cublas, "the launcher in C++ is not built, or no cuBLASLt is loaded"
    return found


@pytest.fixture(scope="module")
def suggested(identity: GpuIdentity) -> Callable[..., list[StoredAlgorithm]]:
    """cuBLASLt's suggestions for a task that a call can run, in its own order."""
    pytest.importorskip("nvmath.bindings.cublasLt", reason="nvmath reads the suggestions")
    from cudal2_agent.sandbox.cuda.baselines.cublaslt import LtProduct

    def of(task: GemmTask) -> list[StoredAlgorithm]:
        product = LtProduct(task, task.layout)
        told = [(product.describe(one), product.record(one)) for one in product.suggestions]
        return [stored(task, words, opaque) for words, opaque in told if not why_not_run(task, words)]

    def stored(task: GemmTask, words: str, opaque: str) -> StoredAlgorithm:
        return StoredAlgorithm(
            task=task,
            chip=identity.gpu,
            words=words,
            opaque=opaque,
            time_us=1.0,
            torch_us=2.0,
            heuristic_us=None,
            environment=f"{identity.gpu} driver-{identity.driver} toolkit-13.0 cublas-{identity.cublas}",
            run_id="here",
            measured=date(2026, 11, 23),
        )

    return of


@pytest.fixture
def enabled(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Callable[..., None]]:
    """A function that serves algorithms from a library of their own, with the replaced kernels in a language."""
    before = torch_session.service()

    def enable(*algorithms: StoredAlgorithm, language: str = "Python") -> None:
        folder = before.prepared.folder
        if language == "C++" and find_compiled(folder, "CUDA") is None:
            compiled_build.build(folder, "CUDA")
        monkeypatch.setattr(compiled_build, "find", find_compiled if language == "C++" else lambda *_: None)
        monkeypatch.setattr("tests.doubles.libraries.CHIP", algorithms[0].chip)
        aten_override.unregister()
        cudal2.enable(write_entries(tmp_path / "algorithms", [], algorithms))
        assert cudal2.status().languages == (language,), cudal2.status()

    yield enable
    torch_session.disable()
    aten_override.unregister()
    torch_session.use_service(before)


@pytest.mark.parametrize("layout", list(Layout))
@pytest.mark.parametrize("element", list(ElementType))
def test_products_are_right_by_record_and_by_words(
    platform: CudaPlatform, suggested: Callable[..., list[StoredAlgorithm]], layout: Layout, element: ElementType
) -> None:
    """Of the record exactly that algorithm runs; of the words the first suggestion of that configuration."""
    for task in (TASK, SPLIT):
        own = task.model_copy(update={"layout": layout, "element": element})
        found = suggested(own)
        assert found
        for stored in found[:8]:
            for one in (stored, stored.model_copy(update={"opaque": None})):
                kernel = platform.load_algorithm(0, one)
                assert fault_of(one.task, kernel, "cuda:0", lambda: platform.stream(0)) == "", one.words


def test_a_configuration_that_is_not_suggested_is_refused(
    platform: CudaPlatform, suggested: Callable[..., list[StoredAlgorithm]]
) -> None:
    stored = suggested(TASK)[0]
    words = f"layout {TASK.layout}, algorithm 9999, {stored.words.split(', ', 2)[2]}"
    for changes in ({"words": words, "opaque": None}, {"words": words}):
        with pytest.raises(LauncherError, match="does not suggest"):
            platform.load_algorithm(0, stored.model_copy(update=changes))


@pytest.mark.parametrize("language", ["Python", "C++"])
def test_calls_are_served_and_counted(
    suggested: Callable[..., list[StoredAlgorithm]], enabled: Callable[..., None], language: str
) -> None:
    tasks = [TASK.model_copy(update={"layout": layout, "element": element}) for layout in Layout for element in ElementType]
    chosen = [suggested(task)[-1] for task in tasks]
    expected = [torch.mm(a.float(), b.float()) for a, b in (drawn(one.task, 5, "cuda:0") for one in chosen)]
    enabled(*chosen, language=language)
    for _ in range(DRAWS):
        outs = [torch.mm(*drawn(one.task, 5, "cuda:0")) for one in chosen]
    told = cudal2.status()
    for out, right in zip(outs, expected, strict=True):
        torch.testing.assert_close(out.float(), right, rtol=2e-2, atol=0.2)
    assert told.algorithms == {one.id: DRAWS for one in chosen}
    assert told.devices[0].algorithms == len(chosen)
    assert f"{DRAWS * len(chosen)} ran by {len(chosen)} stored algorithms of cuBLASLt" in str(told)


def split_one(found: list[StoredAlgorithm]) -> StoredAlgorithm:
    """One with a workspace, where cuBLASLt suggests one here."""
    return next((one for one in found if "reduction compute_type" in one.words), found[0])


@pytest.mark.parametrize("language", ["Python", "C++"])
def test_a_graph_replays_with_new_operands_beside_calls_on_other_streams(
    suggested: Callable[..., list[StoredAlgorithm]], enabled: Callable[..., None], language: str
) -> None:
    stored = split_one(suggested(SPLIT))
    draws = [drawn(stored.task, seed, "cuda:0") for seed in range(4)]
    expected = [torch.mm(a.float(), b.float()) for a, b in draws]
    enabled(stored, language=language)
    a, b = (one.clone() for one in draws[0])
    torch.mm(a, b)
    graph, side = torch.cuda.CUDAGraph(), torch.cuda.Stream()
    with torch.cuda.graph(graph):
        out = torch.mm(a, b)
    for (new_a, new_b), right in zip(draws, expected, strict=True):
        a.copy_(new_a)
        b.copy_(new_b)
        torch.cuda.synchronize()
        with torch.cuda.stream(side):
            beside = [torch.mm(*draws[0]) for _ in range(20)]
        for _ in range(20):
            graph.replay()
        torch.cuda.synchronize()
        torch.testing.assert_close(out.float(), right, rtol=2e-2, atol=0.5)
        for one in beside:
            torch.testing.assert_close(one.float(), expected[0], rtol=2e-2, atol=0.5)
    assert cudal2.status().fallbacks == {}


def test_a_capture_before_the_first_call_is_pytorch_s(
    suggested: Callable[..., list[StoredAlgorithm]], enabled: Callable[..., None]
) -> None:
    stored = suggested(TASK)[0]
    a, b = drawn(stored.task, 0, "cuda:0")
    torch.mm(a, b)  # PyTorch's own handle is made outside the capture
    enabled(stored)
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        torch.mm(a, b)
    assert cudal2.status().fallbacks == {FallbackCause.CAPTURING: 1}


def test_threads_on_two_streams_share_an_algorithm(
    suggested: Callable[..., list[StoredAlgorithm]], enabled: Callable[..., None]
) -> None:
    stored = split_one(suggested(SPLIT))
    draws = [drawn(stored.task, seed, "cuda:0") for seed in range(8)]
    expected = [torch.mm(a.float(), b.float()) for a, b in draws]
    streams = [torch.cuda.Stream(), torch.cuda.Stream()]
    enabled(stored, language="C++")
    torch.cuda.synchronize()
    wrong: list[int] = []

    def work(number: int) -> None:
        with torch.cuda.stream(streams[number % 2]):
            for _ in range(200):
                out = torch.mm(*draws[number])
            torch.cuda.current_stream().synchronize()
            if not torch.allclose(out.float(), expected[number], rtol=2e-2, atol=0.5):
                wrong.append(number)

    threads = [threading.Thread(target=work, args=(number,)) for number in range(len(draws))]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert wrong == []
    assert cudal2.status().algorithms == {stored.id: 200 * len(draws)}


def test_another_version_of_cublas_is_not_run(
    suggested: Callable[..., list[StoredAlgorithm]], enabled: Callable[..., None]
) -> None:
    stored = suggested(TASK)[0]
    enabled(stored.model_copy(update={"environment": f"{stored.environment}.7"}))
    torch.mm(*drawn(stored.task, 0, "cuda:0"))
    assert cudal2.status().fallbacks == {FallbackCause.OTHER_CUBLAS: 1}


def test_library_check_compares_and_times(suggested: Callable[..., list[StoredAlgorithm]]) -> None:
    outcome = run_algorithm(suggested(TASK)[0])
    assert (outcome.fault, outcome.absent) == ("", "")
    assert outcome.time_us is not None
    assert outcome.torch_us is not None
    assert 1 < outcome.time_us < 1000
    assert 1 < outcome.torch_us < 1000


@pytest.mark.parametrize("task", TIMED, ids=lambda task: f"{task.shape}-{task.layout}")
def test_the_best_suggestion_is_at_least_as_fast_as_torch(
    platform: CudaPlatform, suggested: Callable[..., list[StoredAlgorithm]], task: GemmTask
) -> None:
    """PyTorch takes the first suggestion, with a workspace of its own size, so the best one cannot lose but by noise."""
    times: list[tuple[float, float, str]] = []
    for stored in suggested(task)[:MAX_TIMED]:
        kernel: Any = platform.load_algorithm(0, stored)
        times.append((*_times_us(stored, kernel, platform), stored.words))
    best_us, torch_us, words = min(times)
    print(f"\n{task.shape} {task.layout}: {best_us:.2f} us, torch.mm {torch_us:.2f} us ({torch_us / best_us:.3f}x): {words}")
    assert best_us < 1.03 * torch_us


@pytest.mark.parametrize("task", TIMED, ids=lambda task: f"{task.shape}-{task.layout}")
def test_a_tuned_product_is_served(
    task: GemmTask, platform: CudaPlatform, identity: GpuIdentity, enabled: Callable[..., None], tmp_path: Path
) -> None:
    pytest.importorskip("nvmath.bindings.cublasLt", reason="nvmath reads the suggestions")
    from cudal2_agent.agent.library.algorithms.suggested_algorithms import CudaProductBench, environment_of
    from cudal2_agent.agent.library.algorithms.tuned_products import tune_products

    [row] = tune_products(
        [task],
        lambda one: CudaProductBench(one, platform, identity),
        tmp_path / "rows.jsonl",
        chip=identity.gpu,
        environment=environment_of(identity),
    )
    print(f"\n{task.shape} {task.layout}: {row.time_us} us, {row.speedup}, best of {row.tried}, {row.seconds} s, {row.words}")
    assert row.note == ""
    assert row.tried > 0
    if row.algorithm is not None:
        enabled(row.algorithm)
        torch.mm(*drawn(task, 0, "cuda:0"))
        assert cudal2.status().algorithms == {row.algorithm.id: 1}
