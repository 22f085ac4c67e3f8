"""Launchers on the fake driver: the one in C++, where it is built, and the one in Python."""

import importlib.util
from collections.abc import Iterator

import pytest

from cudal2.launcher.interpreted import InterpretedLauncher
from cudal2.launcher.loaded_kernel import BuiltKernel
from cudal2_agent.contract.plan.chip import LIMITS
from cudal2_agent.contract.plan.plan import plan_from_json
from cudal2_agent.contract.plan.resolve import resolve
from cudal2_agent.contract.records.task import Arch, GemmTask
from tests.doubles.fake_driver import FakeDriver, fake_cubin, fake_driver_file

IS_COMPILED = importlib.util.find_spec("cudal2.launcher._native") is not None
TASK = GemmTask(m=256, n=512, k=128)
OUT = {"tensor": "D", "access": "write"}
SIZES = {"tensor": 8, "workspace": 8, "tensor_map": 128, "i32": 4, "u32": 4, "i64": 8, "f32": 4}


@pytest.fixture
def fake() -> Iterator[FakeDriver]:
    driver = FakeDriver(fake_driver_file())
    yield driver
    driver.reset()


@pytest.fixture(params=["compiled", "interpreted"])
def opened(request, fake):
    """A function that opens a launcher for a device on the fake driver."""
    if request.param == "interpreted":
        return lambda device=0, file=fake.file: InterpretedLauncher(device, file)
    if not IS_COMPILED:
        pytest.skip("the C++ launcher is not built")
    from cudal2.launcher.compiled import CompiledLauncher

    return lambda device=0, file=fake.file: CompiledLauncher(device, file)


def kernel_of(*launches: dict, cubin: bytes | None = None, task: GemmTask = TASK, sms: int = 132, **more) -> BuiltKernel:
    """A kernel whose code declares what its plan passes, unless `cubin` says otherwise."""
    defaults = {"entry": "gemm", "grid": [4, 2, 1], "block": [128, 1, 1], "args": [OUT]}
    told = [{**defaults, **launch} for launch in launches or ({},)]
    plan = resolve(plan_from_json({"arch": "sm_90a", "launches": told, **more}), task, LIMITS[Arch.SM_90A], sms)
    declared = {launch["entry"]: [_size(arg) for arg in launch["args"]] for launch in told}
    return BuiltKernel(fake_cubin(declared) if cubin is None else cubin, plan, task)


def _size(arg: dict) -> int:
    return SIZES[arg.get("type", "i32")] if "scalar" in arg else SIZES[next(iter(arg))]
