"""The path of a call: what is served, what falls back, and why."""

from __future__ import annotations

import threading
from collections.abc import Callable

import pytest
import torch

from cudal2.dispatch.decision import FallbackCause
from cudal2.torch.product_service import ProductService
from cudal2_agent.contract.errors import DeviceUnavailable
from cudal2_agent.contract.records.task import ElementType, Layout
from tests.cudal2.torch_ops.matrices import TASK, assert_product, operands
from tests.doubles.host_products import IDENTITY, HostPlatform, HostProducts

Serving = Callable[..., HostProducts]


def only_cause(service: ProductService) -> FallbackCause:
    ((cause, count),) = service.counts.fallbacks().items()
    assert count == 1
    return cause


@pytest.mark.parametrize("layout", list(Layout))
@pytest.mark.parametrize("element", list(ElementType))
def test_a_view_is_served_in_its_layout_without_a_copy(serving: Serving, layout: Layout, element: ElementType) -> None:
    task = TASK.model_copy(update={"layout": layout, "element": element})
    products = serving(task)
    a, b = operands(task)
    assert_product(products.service.product(a, b), a, b)
    assert products.platform.launches == 1
    (entry,) = products.library
    assert products.service.counts.served() == {entry.id: 1}
    assert products.service.counts.fallbacks() == {}


def test_a_kernel_is_loaded_once_and_launched_on_the_current_stream(serving: Serving) -> None:
    products = serving(TASK)
    a, b = operands()
    for stream in (7, 7, 9):
        products.platform.stream_handle = stream
        products.service.product(a, b)
    (kernel,) = products.platform.kernels
    assert kernel.launches == [7, 7, 9]


def shifted(matrix: torch.Tensor) -> torch.Tensor:
    """The same matrix, begun at an odd address."""
    memory = torch.empty(matrix.numel() + 1, dtype=matrix.dtype)
    return memory[1:].view(matrix.shape).copy_(matrix)


BOTH_COLUMN_MAJOR = (torch.randn(64, 16).half().t(), torch.randn(32, 64).half().t())


@pytest.mark.parametrize(
    ("a", "b", "cause"),
    [
        (torch.randn(16, 64), torch.randn(64, 32), FallbackCause.TYPE),
        (torch.randn(16, 64).half(), torch.randn(64, 32).bfloat16(), FallbackCause.TYPE),
        (torch.randn(16, 64).half(), torch.randn(64, 32, device="meta").half(), FallbackCause.TYPE),
        (torch.randn(16, 128).half()[:, ::2], torch.randn(64, 32).half(), FallbackCause.LAYOUT),
        (torch.randn(16, 128).half()[:, :64], torch.randn(64, 32).half(), FallbackCause.LAYOUT),
        (*BOTH_COLUMN_MAJOR, FallbackCause.LAYOUT),
        (torch.randn(0, 64).half(), torch.randn(64, 32).half(), FallbackCause.EMPTY),
        (torch.randn(16, 0).half(), torch.randn(0, 32).half(), FallbackCause.EMPTY),
        (torch.randn(16, 64).half(), torch.randn(63, 32).half(), FallbackCause.RANK),
        (torch.randn(64).half(), torch.randn(64, 32).half(), FallbackCause.RANK),
        (torch.randn(17, 64).half(), torch.randn(64, 32).half(), FallbackCause.NO_ENTRY),
        (shifted(torch.randn(16, 64).half()), torch.randn(64, 32).half(), FallbackCause.UNALIGNED),
    ],
)
def test_what_no_entry_serves_falls_back(serving: Serving, a: torch.Tensor, b: torch.Tensor, cause: FallbackCause) -> None:
    products = serving(TASK)
    assert products.service.product(a, b) is None
    assert only_cause(products.service) is cause
    assert products.platform.launches == 0


def test_operands_too_large_for_a_task_fall_back(serving: Serving) -> None:
    one = torch.zeros(1).half()
    a, b = one.expand(2**16 + 1, 2**15), one.expand(2**15, 32)
    products = serving(TASK)
    assert products.service.product(a, b) is None
    assert only_cause(products.service) is FallbackCause.TOO_LARGE


@pytest.mark.parametrize(
    ("platform", "cause"),
    [
        (HostPlatform(why_missing="there is no GPU"), FallbackCause.NO_GPU),
        (HostPlatform(IDENTITY.model_copy(update={"gpu": "H100"})), FallbackCause.OTHER_GPU),
        (HostPlatform(IDENTITY.model_copy(update={"driver": "999"})), FallbackCause.OTHER_DRIVER),
    ],
)
def test_nothing_is_served_where_nothing_was_measured_and_it_is_said_once(
    serving: Serving, platform: HostPlatform, cause: FallbackCause
) -> None:
    products = serving(TASK, platform=platform)
    for m in (16, 32):
        products.service.product(torch.randn(m, 64).half(), torch.randn(64, 32).half())
    products.service.product(*operands())
    assert products.service.counts.fallbacks()[cause] == (3 if cause is not FallbackCause.OTHER_DRIVER else 2)
    assert len(products.service.notices.texts()) == 1


def test_deterministic_algorithms_are_left_to_torch(serving: Serving) -> None:
    products = serving(TASK)
    torch.use_deterministic_algorithms(True)
    try:
        assert products.service.product(*operands()) is None
    finally:
        torch.use_deterministic_algorithms(False)
    assert only_cause(products.service) is FallbackCause.DETERMINISTIC
    assert products.service.product(*operands()) is not None


def test_f16_accumulation_is_left_to_torch(serving: Serving, monkeypatch: pytest.MonkeyPatch) -> None:
    bf16 = TASK.model_copy(update={"element": ElementType.BF16})
    products = serving(TASK, bf16)
    monkeypatch.setattr("cudal2.torch.matrix_signature._accumulates_in_f16", lambda: True)
    assert products.service.product(*operands()) is None
    assert only_cause(products.service) is FallbackCause.REDUCED_ACCUMULATION
    assert products.service.product(*operands(bf16)) is not None, "bf16 always accumulates in f32"


def test_a_missing_kernel_is_built_in_the_background_and_then_served(serving: Serving) -> None:
    products = serving(TASK, ready=False)
    assert products.service.product(*operands()) is None
    assert products.service.builds.wait(10)
    assert_product(products.service.product(*operands()), *operands())
    assert [(order.entry.task, order.task) for order in products.builder.orders] == [(TASK, TASK)]


def test_a_failed_build_is_not_tried_again(serving: Serving, caplog: pytest.LogCaptureFixture) -> None:
    products = serving(TASK, ready=False)
    products.builder.failing = True
    for _ in range(3):
        assert products.service.product(*operands()) is None
        assert products.service.builds.wait(10)
    assert len(products.builder.orders) == 1
    assert products.service.counts.fallbacks() == {FallbackCause.BUILDING: 1, FallbackCause.BUILD_FAILED: 2}
    assert "the compiler is missing" in caplog.text
    assert list(products.service.builds.failed().values()) == ["the compiler is missing"]


def test_a_damaged_kernel_is_built_again(serving: Serving) -> None:
    products = serving(TASK)
    (entry,) = products.library
    products.prepared.cubin_path(entry).write_bytes(b"damaged")
    assert products.service.product(*operands()) is None
    assert products.service.builds.wait(10)
    assert_product(products.service.product(*operands()), *operands())
    assert any("damaged" in note for note in products.service.notices.texts())


def test_a_kernel_that_the_driver_refuses_falls_back(serving: Serving) -> None:
    platform = HostPlatform()
    platform.refusing = True
    products = serving(TASK, platform=platform)
    assert products.service.product(*operands()) is None
    assert only_cause(products.service) is FallbackCause.UNUSABLE
    assert any("CUDA_ERROR_INVALID_IMAGE" in note or "cuLibraryLoadData" in note for note in products.service.notices.texts())


def test_a_driver_that_is_too_old_falls_back(serving: Serving, monkeypatch: pytest.MonkeyPatch) -> None:
    products = serving(TASK)

    def load(*_: object) -> None:
        raise DeviceUnavailable("the driver is older than CUDA 12.4")

    monkeypatch.setattr(products.platform, "load", load)
    assert products.service.product(*operands()) is None
    assert only_cause(products.service) is FallbackCause.NO_LAUNCHER
    assert any("older than CUDA 12.4" in note for note in products.service.notices.texts())


def test_a_kernel_whose_launch_fails_is_not_launched_again(serving: Serving) -> None:
    platform = HostPlatform()
    platform.failing = True
    products = serving(TASK, platform=platform)
    for _ in range(3):
        assert products.service.product(*operands()) is None
    assert products.service.counts.fallbacks() == {FallbackCause.LAUNCH_FAILED: 3}
    assert len(products.service.notices.texts()) == 1


def test_a_capture_uses_kernels_that_are_ready_and_loads_none(serving: Serving) -> None:
    products = serving(TASK)
    products.platform.is_capturing = True
    assert products.service.product(*operands()) is None
    assert only_cause(products.service) is FallbackCause.CAPTURING
    assert products.platform.kernels == []
    products.platform.is_capturing = False
    assert products.service.product(*operands()) is not None, "the route of a capture is not kept"
    products.platform.is_capturing = True
    assert products.service.product(*operands()) is not None


def test_an_output_of_the_caller_is_written(serving: Serving) -> None:
    products = serving(TASK)
    a, b = operands()
    out = torch.empty(16, 32).half()
    assert products.service.product(a, b, out) is out
    assert_product(out, a, b)
    for wrong in (torch.empty(32, 16).half(), torch.empty(32, 16).half().t(), torch.empty(16, 32)):
        assert products.service.product(a, b, wrong) is None
    assert products.service.counts.fallbacks() == {FallbackCause.OUTPUT: 3}


def test_many_threads_share_a_service(serving: Serving) -> None:
    wide = TASK.model_copy(update={"n": 64})
    products = serving(TASK, wide)
    wrong: list[str] = []

    def work() -> None:
        for task in (TASK, wide) * 20:
            a, b = operands(task)
            out = products.service.product(a, b)
            if out is None or not torch.allclose(out.float(), a.float() @ b.float(), rtol=1e-2, atol=1e-2):
                wrong.append(task.shape)

    threads = [threading.Thread(target=work) for _ in range(8)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert wrong == []
    assert sorted(products.service.counts.served().values()) == [160, 160]
    assert len(products.platform.kernels) == 2
