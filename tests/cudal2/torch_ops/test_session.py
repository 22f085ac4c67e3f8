"""What a process sets up and what it is told, with and without a GPU."""

from __future__ import annotations

import ctypes
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import pytest
import torch

import cudal2
from cudal2.dispatch.decision import FallbackCause
from cudal2.torch import gpu_platform, torch_session
from cudal2.torch.gpu_platform import CudaPlatform
from cudal2_agent.contract.errors import LibraryError, UsageError
from tests.cudal2.torch_ops.matrices import TASK, operands
from tests.doubles.host_products import IDENTITY, HostPlatform, HostProducts
from tests.doubles.libraries import library_entry, write_entries

Serving = Callable[..., HostProducts]
ROOT = Path(__file__).resolve().parents[3]


def python(code: str) -> str:
    """What a fresh process prints that sees no GPU."""
    environment = {"PYTHONPATH": str(ROOT), "PATH": "", "CUDA_VISIBLE_DEVICES": ""}
    done = subprocess.run([sys.executable, "-c", code], env=environment, capture_output=True, text=True, check=True)
    return done.stdout


def test_the_package_imports_without_torch() -> None:
    looked_for = ("torch", *(f"cudal2_agent.{part}" for part in ("agent", "sandbox", "policies", "store")))
    code = f"import sys, cudal2, cudal2.dispatch.dispatcher; print([name for name in {looked_for} if name in sys.modules])"
    assert python(code) == "[]\n"


def test_without_a_gpu_everything_falls_back_and_says_why() -> None:
    code = """
import torch, cudal2
assert torch.ops.cudal2.matmul(torch.ones(2, 3), torch.ones(3, 2)).sum() == 12
with cudal2.enable():
    assert cudal2.matmul(torch.ones(2, 3), torch.ones(3, 2)).sum() == 12
print(cudal2.status())
"""
    told = python(code)
    assert told.startswith("not enabled: PyTorch")
    assert "0 of 2 matrix products were served" in told


def test_a_name_that_is_none_is_said() -> None:
    with pytest.raises(AttributeError, match="no attribute 'matmull'"):
        cudal2.matmull  # noqa: B018
    assert {"matmul", "enable", "status"} <= set(dir(cudal2))


def test_the_status_tells_what_was_served_and_why_the_rest_was_not(serving: Serving, language: str) -> None:
    products = serving(TASK)
    a, b = operands()
    assert "no matrix product was asked for yet" in str(cudal2.status())
    with cudal2.enable():
        a @ b
        a.float() @ b.float()
        status = cudal2.status()
    (entry,) = products.library
    assert status.model_dump()["served"] == {entry.id: 1}
    assert status.fallbacks == {FallbackCause.TYPE: 1}
    lines = str(status).splitlines()
    way = "Python; `cudal2-agent library prepare` compiles a faster way" if language == "Python" else "C++"
    assert lines[0] == f"enabled for mm and addmm of PyTorch {torch.__version__}; calls pass through {way}"
    assert lines[1] == f"device -1, H200 with driver 580.1: 1 of 1 entries of {products.library.path} may be chosen"
    assert lines[2:] == ["1 of 2 matrix products were served by 1 kernels", f"1 fell back: {FallbackCause.TYPE.sentence}"]
    assert type(status).model_validate_json(status.model_dump_json()) == status


def test_the_status_tells_of_builds_that_failed(serving: Serving) -> None:
    products = serving(TASK, ready=False)
    products.builder.failing = True
    products.service.product(*operands())
    assert products.service.builds.wait(10)
    assert "for 16x32x64 was not built: the compiler is missing" in str(cudal2.status())


def test_the_status_tells_of_another_gpu(serving: Serving) -> None:
    serving(TASK, platform=HostPlatform(IDENTITY.model_copy(update={"gpu": "H100"})))
    told = str(cudal2.status())
    assert f"device -1: nothing is served: {FallbackCause.OTHER_GPU.sentence}" in told
    assert "was measured on H200, and this GPU is H100; nothing is chosen until `cudal2-agent library build`" in told


def test_the_status_tells_of_entries_of_another_nvrtc(serving: Serving) -> None:
    products = serving(TASK, platform=HostPlatform(IDENTITY.model_copy(update={"nvrtc": "13.2"})))
    assert products.service.product(*operands()) is None
    told = str(cudal2.status())
    assert "0 of 1 entries" in told
    assert "; 1 were measured with another NVRTC than 13.2 and are not used here" in told
    assert f"1 fell back: {FallbackCause.OTHER_NVRTC.sentence}" in told
    assert products.builder.orders == []


def test_entries_of_the_same_nvrtc_are_served(serving: Serving) -> None:
    products = serving(TASK, platform=HostPlatform(IDENTITY.model_copy(update={"nvrtc": "13.0"})))
    assert products.service.product(*operands()) is not None
    assert "1 of 1 entries" in str(cudal2.status())


def test_a_library_is_configured_or_said_to_be_none(tmp_path: Path, serving: Serving) -> None:
    serving(TASK)
    before = torch_session.service()
    with pytest.raises(UsageError, match="does not exist"):
        cudal2.configure(tmp_path / "none")
    (tmp_path / "broken.jsonl.gz").write_bytes(b"not a library")
    with pytest.raises(LibraryError, match="damaged or not a kernel library"):
        cudal2.enable(tmp_path / "broken.jsonl.gz")
    assert torch_session.service() is before
    cudal2.configure(write_entries(tmp_path / "mine", [library_entry(TASK)]))
    assert torch_session.service() is not before


def test_what_is_enabled_follows_a_new_library(serving: Serving, tmp_path: Path) -> None:
    first = serving(TASK)
    with cudal2.enable():
        second = HostProducts(tmp_path / "second", [TASK])
        torch_session.use_service(second.service)
        torch.mm(*operands())
    assert (first.platform.launches, second.platform.launches) == (0, 1)


@pytest.mark.skipif(torch.cuda.is_available(), reason="this machine has a GPU")
def test_the_platform_of_gpus_says_what_is_missing() -> None:
    platform = CudaPlatform()
    assert "without CUDA" in platform.missing() or "no GPU" in platform.missing()
    assert platform.devices() == ()


class FakeNvml:
    """NVML as `ctypes` calls it. `status`: of the call that starts it, and of the one that asks."""

    def __init__(self, *status: int) -> None:
        self._started, self._asked = status

    def nvmlInit_v2(self) -> int:
        return self._started

    def nvmlSystemGetDriverVersion(self, text: ctypes.Array[ctypes.c_char], length: ctypes.c_uint) -> int:  # noqa: ARG002
        text.value = b"580.159.04"
        return self._asked

    def nvmlShutdown(self) -> int:
        return 0


@pytest.mark.parametrize(("status", "version"), [((0, 0), "580.159.04"), ((9, 0), "CUDA 13.0"), ((0, 3), "CUDA 13.0")])
def test_the_driver_is_named_as_measurements_name_it(
    monkeypatch: pytest.MonkeyPatch, status: tuple[int, int], version: str
) -> None:
    monkeypatch.setattr(torch._C, "_cuda_getDriverVersion", lambda: 13000, raising=False)
    monkeypatch.setattr(gpu_platform.ctypes, "CDLL", lambda name: FakeNvml(*status))  # noqa: ARG005
    assert gpu_platform._driver_version() == version


def test_without_nvml_the_driver_is_named_by_its_cuda_version(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(torch._C, "_cuda_getDriverVersion", lambda: 12080, raising=False)
    monkeypatch.setattr(gpu_platform, "_NVML", "libnone.so.1")
    assert gpu_platform._driver_version() == "CUDA 12.8"
