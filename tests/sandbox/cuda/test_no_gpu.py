"""Why a process has no GPU: the driver, its age, what CUDA_VISIBLE_DEVICES leaves; and why a GPU refuses a context."""

from types import SimpleNamespace

import pytest
from cuda.bindings import driver as real

from cudal2_agent.sandbox.cuda import device, driver
from cudal2_agent.sandbox.cuda.driver import no_gpu, too_old


def answering(monkeypatch: pytest.MonkeyPatch, *, status: int = 0, count: int = 1, supported: int = 13000) -> None:
    """A driver that answers so."""
    result = real.CUresult
    stub = SimpleNamespace(
        CUresult=result,
        cuInit=lambda _: (result(status),),
        cuDeviceGetCount=lambda: (result.CUDA_SUCCESS, count),
        cuDriverGetVersion=lambda: (result.CUDA_SUCCESS, supported),
        cuGetErrorName=lambda status: (result.CUDA_SUCCESS, status.name.encode()),
        cuGetErrorString=lambda _: (result.CUDA_SUCCESS, b""),
    )
    monkeypatch.setattr(driver, "driver", stub)
    monkeypatch.setattr(driver, "toolkit", lambda: 13)


def test_no_driver(monkeypatch: pytest.MonkeyPatch) -> None:
    def absent(_: int) -> None:
        raise RuntimeError("libcuda.so.1 was not found")

    monkeypatch.setattr(driver, "driver", SimpleNamespace(cuInit=absent))
    assert no_gpu().startswith("no NVIDIA driver")


def test_a_gpu(monkeypatch: pytest.MonkeyPatch) -> None:
    answering(monkeypatch)
    assert no_gpu() == ""


@pytest.mark.parametrize("status", [100, 0])
@pytest.mark.parametrize("visible", ["", "-1", "GPU-0", "0,0", "MIG-8f6a2c9e"])
def test_devices_that_are_hidden(monkeypatch: pytest.MonkeyPatch, status: int, visible: str) -> None:
    answering(monkeypatch, status=status, count=0)
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", visible)
    assert no_gpu().startswith(f"CUDA_VISIBLE_DEVICES={visible!r} leaves this process no GPU; name GPUs as `nvidia-smi -L`")


def test_a_container_without_gpus(monkeypatch: pytest.MonkeyPatch) -> None:
    answering(monkeypatch, status=100, count=0)
    monkeypatch.delenv("CUDA_VISIBLE_DEVICES", raising=False)
    assert "give a container its GPUs" in no_gpu()


def test_a_driver_that_does_not_start(monkeypatch: pytest.MonkeyPatch) -> None:
    answering(monkeypatch, status=803)
    assert "(CUDA_ERROR_SYSTEM_DRIVER_MISMATCH)" in no_gpu()


def test_a_driver_of_cuda_12_is_named_with_what_is_needed(monkeypatch: pytest.MonkeyPatch) -> None:
    answering(monkeypatch, supported=12080)
    expected = "the NVIDIA driver supports CUDA 12.8, and the packages of CUDA 13 need driver 580 or newer: update it"
    assert no_gpu() == f"{expected}, or install CUDA 12's packages (make setup CUDA=12)"


@pytest.mark.parametrize(
    ("supported", "packages", "said"),
    [
        (13000, 13, ""),
        (13020, 13, ""),
        (13000, 12, ""),
        (12040, 12, ""),
        (12020, 12, "CUDA 12.2, and the packages of CUDA 12 need driver 550 or newer: update it"),
        (12020, 13, "CUDA 12.2, and the packages of CUDA 13 need driver 580 or newer: update it"),
        (13000, 14, "need driver for CUDA 14 or newer"),
    ],
)
def test_which_driver_is_old_enough(supported: int, packages: int, said: str) -> None:
    found = too_old(supported, packages)
    assert found.endswith(said) if packages < 14 and said else said in found
    assert bool(found) is bool(said)


@pytest.mark.parametrize(("mode", "said"), [(3, "exclusive-process mode"), (2, "prohibited mode"), (0, "out of memory")])
def test_why_a_gpu_refuses_a_context(monkeypatch: pytest.MonkeyPatch, mode: int, said: str) -> None:
    monkeypatch.setattr(device, "device_attribute", lambda *_: mode)
    assert said in device._refusal(0, RuntimeError("out of memory"))
