"""Products that run by a stored algorithm of cuBLASLt: which, how they are counted, and what they leave to PyTorch."""

from __future__ import annotations

from collections.abc import Callable, Iterator

import pytest
import torch

import cudal2
from cudal2.dispatch.decision import FallbackCause
from cudal2.launcher.launcher import open_launcher
from cudal2.launcher.loaded_kernel import ALIGNMENT, LoadedKernel
from cudal2.torch import gpu_platform
from cudal2.torch.gpu_platform import CudaPlatform
from cudal2_agent.contract.errors import DeviceUnavailable
from cudal2_agent.contract.records.library import StoredAlgorithm
from cudal2_agent.contract.records.task import ElementType, GemmTask, Layout
from tests.cudal2.torch_ops.matrices import TASK, assert_product, operands
from tests.cudal2.torch_ops.test_compiled_kernels import multiply_at_many_addresses
from tests.cudal2.torch_ops.test_launched_products import DriverPlatform, aligned
from tests.doubles.fake_cublaslt import FakeCublasLt, fake_cublaslt_file
from tests.doubles.fake_driver import FakeDriver, fake_driver_file
from tests.doubles.host_products import IDENTITY, HostPlatform, HostProducts
from tests.doubles.libraries import stored_algorithm

Serving = Callable[..., HostProducts]
WIDE = TASK.model_copy(update={"n": 64})


class LtPlatform(DriverPlatform):
    """The CPU as a GPU whose algorithms go through the real launcher to a fake cuBLASLt, which multiplies."""

    def __init__(self, lt: FakeCublasLt) -> None:
        super().__init__(str(fake_driver_file()))
        self._files = (lt.file,)

    def load_algorithm(self, device: int, algorithm: StoredAlgorithm) -> LoadedKernel:  # noqa: ARG002
        return self._launcher.load_algorithm(algorithm, self._files)


@pytest.fixture
def lt() -> Iterator[FakeCublasLt]:
    pytest.importorskip("cudal2.launcher._native", reason="the C++ launcher is not built")
    fake = FakeCublasLt(fake_cublaslt_file())
    fake.compute()
    fake.suggest(workspace=1024)
    yield fake
    fake.reset()


@pytest.mark.parametrize("layout", list(Layout))
@pytest.mark.parametrize("element", list(ElementType))
def test_a_product_goes_through_the_launcher_to_cublaslt(
    serving: Serving, lt: FakeCublasLt, layout: Layout, element: ElementType
) -> None:
    task = TASK.model_copy(update={"layout": layout, "element": element})
    stored = stored_algorithm(task)
    products = serving(platform=LtPlatform(lt), algorithms=[stored])
    a, b = (aligned(one) for one in operands(task))
    out = aligned(torch.zeros(task.m, task.n, dtype=a.dtype))
    assert products.service.product(a, b, out) is not None, (
        products.service.counts.fallbacks(),
        products.service.notices.texts(),
    )
    assert_product(out, a, b)
    assert (products.service.counts.by_algorithm(), products.service.counts.served()) == ({stored.id: 1}, {})


def test_an_algorithm_is_loaded_once_and_counted_apart_from_kernels(serving: Serving, language: str) -> None:
    stored = stored_algorithm(WIDE)
    products = serving(TASK, algorithms=[stored])
    with cudal2.enable():
        for _ in range(3):
            out = torch.mm(*operands(WIDE))
        torch.mm(*operands())
        told = cudal2.status()
    assert_product(out, *operands(WIDE))
    (entry,) = products.library
    assert (told.served, told.algorithms, told.languages) == ({entry.id: 1}, {stored.id: 3}, (language,))
    assert len(products.platform.kernels) == 2
    assert "1 of 4 matrix products were served by 1 kernels\n3 ran by 1 stored algorithms of cuBLASLt" in str(told)
    assert "may be chosen, 1 algorithms of cuBLAS 13.1.0" in str(told)
    assert told.devices[0].algorithms == 1


@pytest.mark.usefixtures("in_cpp")
def test_the_kernel_in_cpp_launches_it_without_python(
    serving: Serving, lt: FakeCublasLt, monkeypatch: pytest.MonkeyPatch
) -> None:
    """PyTorch aligns results on the CPU to 64 bytes, the launcher asks for 256: some of the results are of the algorithm."""
    stored = stored_algorithm(TASK)
    products = serving(platform=LtPlatform(lt), algorithms=[stored])
    a, b = (aligned(one) for one in operands())
    opened: list[object] = []
    open_route = products.service.open_route

    def counted(*forms: object) -> object:
        opened.append(forms)
        return open_route(*forms)  # type: ignore[arg-type]

    monkeypatch.setattr(products.service, "open_route", counted)
    outs = multiply_at_many_addresses(a, b)
    for out in outs:
        assert_product(out, a, b)
    (ran,) = products.service.counts.by_algorithm().values()
    assert products.service.counts.fallbacks() == {FallbackCause.UNALIGNED: len(outs) - ran}
    assert len(lt.events("multiply")) == ran
    assert len(opened) == 1


@pytest.mark.parametrize(
    ("identity", "cause"),
    [
        ({"cublas": "12.9.1"}, FallbackCause.OTHER_CUBLAS),
        ({"cublas": ""}, FallbackCause.NO_CUBLASLT),
        ({"driver": "999"}, FallbackCause.OTHER_DRIVER),
    ],
)
def test_what_was_tuned_elsewhere_is_left_to_torch(
    serving: Serving, identity: dict[str, str], cause: FallbackCause, language: str
) -> None:
    del language
    platform = HostPlatform(IDENTITY.model_copy(update=identity))
    products = serving(platform=platform, algorithms=[stored_algorithm(TASK)])
    with cudal2.enable():
        out = torch.mm(*operands())
        told = cudal2.status()
    assert_product(out, *operands())
    assert products.service.counts.fallbacks() == {cause: 1}
    assert (told.algorithms, told.devices[0].algorithms, platform.kernels) == ({}, 0, [])
    if cause is FallbackCause.OTHER_CUBLAS:
        assert "than 12.9.1, which is loaded here" in str(told)


def test_one_that_cublaslt_does_not_offer_is_left_to_torch(serving: Serving, language: str) -> None:
    del language
    platform = HostPlatform()
    platform.refusing = True
    products = serving(platform=platform, algorithms=[stored_algorithm(TASK)])
    with cudal2.enable():
        for _ in range(2):
            out = torch.mm(*operands())
    assert_product(out, *operands())
    assert products.service.counts.fallbacks() == {FallbackCause.NO_ALGORITHM: 2}
    (note,) = products.service.notices.texts()
    assert note.startswith("16x32x64 nn: cuBLASLt does not suggest")


def test_a_machine_without_the_launcher_in_cpp_says_so(serving: Serving, monkeypatch: pytest.MonkeyPatch) -> None:
    products = serving(algorithms=[stored_algorithm(TASK)])

    def unavailable(*_: object) -> None:
        raise DeviceUnavailable("the launcher in Python runs no algorithm")

    monkeypatch.setattr(products.platform, "load_algorithm", unavailable)
    assert products.service.product(*operands()) is None
    assert products.service.counts.fallbacks() == {FallbackCause.NO_CUBLASLT: 1}


def test_one_whose_launch_fails_is_not_launched_again(serving: Serving, language: str) -> None:
    del language
    platform = HostPlatform()
    platform.failing = True
    products = serving(platform=platform, algorithms=[stored_algorithm(TASK)])
    with cudal2.enable():
        for _ in range(3):
            out = torch.mm(*operands())
    assert_product(out, *operands())
    assert products.service.counts.fallbacks() == {FallbackCause.LAUNCH_FAILED: 3}
    assert products.service.counts.by_algorithm() == {}


def test_a_capture_loads_none_and_runs_one_that_is_loaded(serving: Serving) -> None:
    products = serving(algorithms=[stored_algorithm(TASK)])
    products.platform.is_capturing = True
    assert products.service.product(*operands()) is None
    assert products.service.counts.fallbacks() == {FallbackCause.CAPTURING: 1}
    products.platform.is_capturing = False
    products.service.product(*operands())
    products.platform.is_capturing = True
    products.service.product(*operands())
    assert sum(products.service.counts.by_algorithm().values()) == 2


@pytest.mark.parametrize("setting", ["deterministic", "unaligned"])
def test_what_excludes_kernels_excludes_algorithms(serving: Serving, setting: str) -> None:
    products = serving(algorithms=[stored_algorithm(TASK)])
    a, b = operands()
    if setting == "unaligned":
        a = torch.empty(a.numel() + 1).half()[1:].view(a.shape).copy_(a)
    torch.use_deterministic_algorithms(setting == "deterministic")
    try:
        assert products.service.product(a, b) is None
    finally:
        torch.use_deterministic_algorithms(False)
    assert products.service.counts.fallbacks() == {FallbackCause(setting): 1}


def test_the_platform_of_gpus_loads_by_the_launcher(lt: FakeCublasLt, monkeypatch: pytest.MonkeyPatch) -> None:
    driver = FakeDriver(fake_driver_file())
    monkeypatch.setattr(gpu_platform, "open_launcher", lambda device: open_launcher(device, driver.file))
    monkeypatch.setattr(gpu_platform, "library_files", lambda cuda: (lt.file,))  # noqa: ARG005
    platform = CudaPlatform()
    task: GemmTask = TASK
    a, b, out = (aligned(one) for one in (*operands(), torch.zeros(task.m, task.n).half()))
    platform.load_algorithm(0, stored_algorithm(task)).launch(a.data_ptr(), b.data_ptr(), out.data_ptr(), 0)
    assert_product(out, a, b)
    assert platform.alignment == ALIGNMENT
