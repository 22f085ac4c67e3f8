"""The whole path of a call but the GPU: a replaced operator, the service, the launcher and a fake driver that multiplies."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch

from cudal2.dispatch.decision import FallbackCause
from cudal2.launcher.launcher import open_launcher
from cudal2.launcher.loaded_kernel import ALIGNMENT, BuiltKernel, LoadedKernel
from cudal2.library.prepared_kernels import CachedKernel
from cudal2.torch import gpu_platform
from cudal2.torch.gpu_platform import CudaPlatform
from cudal2_agent.contract.errors import LauncherError
from cudal2_agent.contract.plan.chip import LIMITS
from cudal2_agent.contract.plan.plan import plan_from_json
from cudal2_agent.contract.plan.resolve import resolve
from cudal2_agent.contract.records.task import Arch, GemmTask, Layout
from tests.cudal2.torch_ops.matrices import TASK, assert_product, operands
from tests.doubles.fake_driver import FakeDriver, fake_cubin, fake_driver_file
from tests.doubles.host_products import HostPlatform, HostProducts

POINTERS = [{"tensor": "A"}, {"tensor": "B"}, {"tensor": "D", "access": "write"}]


@pytest.fixture(scope="module")
def fake() -> FakeDriver:
    return FakeDriver(fake_driver_file())


def kernel_of(task: GemmTask) -> CachedKernel:
    """What a cache would hold: fake code that multiplies, and its plan."""
    sizes = (task.m, task.n, task.k, int(task.layout.transposes_a), int(task.layout.transposes_b))
    launch = {"entry": "gemm", "grid": [1, 1, 1], "block": [128, 1, 1], "args": POINTERS}
    plan = resolve(plan_from_json({"arch": "sm_90a", "launches": [launch]}), task, LIMITS[Arch.SM_90A], 132)
    return CachedKernel(fake_cubin({"gemm": [8, 8, 8]}, sizes), plan)


class DriverPlatform(HostPlatform):
    """The CPU as a GPU whose kernels go through the real launcher to a fake driver."""

    alignment = ALIGNMENT

    def __init__(self, file: str) -> None:
        super().__init__()
        self._launcher = open_launcher(0, file)

    def load(self, device: int, kernel: CachedKernel, task: GemmTask) -> LoadedKernel:  # type: ignore[override]  # noqa: ARG002
        found = kernel_of(task)
        return self._launcher.load(BuiltKernel(found.cubin, found.plan, task))


def aligned(matrix: torch.Tensor) -> torch.Tensor:
    """The same matrix at an address that the launcher takes; PyTorch aligns less on the CPU."""
    row_major = matrix if matrix.is_contiguous() else matrix.t()
    memory = torch.empty(row_major.numel() + ALIGNMENT, dtype=matrix.dtype)
    skipped = -memory.data_ptr() % ALIGNMENT // matrix.element_size()
    placed = memory[skipped : skipped + row_major.numel()].view(row_major.shape).copy_(row_major)
    return placed if row_major is matrix else placed.t()


@pytest.mark.parametrize("layout", list(Layout))
def test_a_product_goes_through_the_launcher(tmp_path: Path, fake: FakeDriver, layout: Layout) -> None:
    task = TASK.model_copy(update={"layout": layout})
    products = HostProducts(tmp_path, [task], platform=DriverPlatform(fake.file))
    a, b = (aligned(one) for one in operands(task))
    out = aligned(torch.zeros(task.m, task.n).half())
    assert products.service.product(a, b, out) is not None, (
        products.service.counts.fallbacks(),
        products.service.notices.texts(),
    )
    assert_product(out, a, b)


def test_an_error_of_the_driver_falls_back(tmp_path: Path, fake: FakeDriver) -> None:
    products = HostProducts(tmp_path, [TASK], platform=DriverPlatform(fake.file))
    a, b = (aligned(one) for one in operands())
    fake.fail("cuLaunchKernelEx", 719)
    try:
        assert products.service.product(a, b, aligned(torch.zeros(16, 32).half())) is None
    finally:
        fake.reset()
    assert products.service.counts.fallbacks() == {FallbackCause.LAUNCH_FAILED: 1}


def test_the_platform_of_gpus_loads_by_the_launcher(fake: FakeDriver, monkeypatch: pytest.MonkeyPatch) -> None:
    opened: list[int] = []

    def opening(device: int) -> object:
        opened.append(device)
        return open_launcher(device, fake.file)

    monkeypatch.setattr(gpu_platform, "open_launcher", opening)
    platform = CudaPlatform()
    a, b, out = (aligned(one) for one in (*operands(), torch.zeros(16, 32).half()))
    for _ in range(2):
        platform.load(0, kernel_of(TASK), TASK).launch(a.data_ptr(), b.data_ptr(), out.data_ptr(), 0)
    assert_product(out, a, b)
    assert opened == [0]
    broken = CachedKernel(b"no code", kernel_of(TASK).plan)
    with pytest.raises(LauncherError):
        platform.load(0, broken, TASK)
