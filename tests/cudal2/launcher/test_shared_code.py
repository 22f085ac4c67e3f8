"""Kernels of one cubin for several sizes: their code is loaded once where they share it."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest

from cudal2.launcher.loaded_kernel import BuiltKernel
from cudal2_agent.contract.errors import LauncherError
from cudal2_agent.contract.plan.chip import LIMITS
from cudal2_agent.contract.plan.launching import argument_bytes
from cudal2_agent.contract.plan.resolve import resolve
from cudal2_agent.contract.records.task import Arch, GemmTask
from tests.cudal2.launcher.conftest import TASK, kernel_of
from tests.doubles.fake_driver import FakeDriver, fake_cubin
from tests.doubles.invariant_sets import invariant_set


@pytest.mark.parametrize(("shared", "loads"), [(True, 1), (False, 3)])
def test_shared_code_is_loaded_once(opened: Callable[..., Any], fake: FakeDriver, shared: bool, loads: int) -> None:
    launcher = opened()
    fake.events()
    for m in (256, 1, 17):
        kernel = kernel_of({"grid": [m, 1, 1]}, task=TASK.model_copy(update={"m": m}))._replace(shared=shared)
        launcher.load(kernel).launch(256, 512, 768, 0)
    events = fake.events("code", "launch")
    assert [event["call"] for event in events].count("code") == loads
    assert [event["grid"][0] for event in events if event["call"] == "launch"] == [256, 1, 17]


@pytest.mark.parametrize("arch", [Arch.SM_90A, Arch.SM_80])
def test_the_plans_of_the_batch_invariant_mode_are_launched(opened: Callable[..., Any], fake: FakeDriver, arch: Arch) -> None:
    launcher, found = opened(), invariant_set(arch)
    fake.events()
    for kernel in found.kernels:
        task = GemmTask(m=8, n=104, k=72, layout=kernel.layout, element=kernel.element, arch=arch)
        plan = resolve(kernel.plan, task, LIMITS[arch], 132)
        code = fake_cubin({launch.entry: [argument_bytes(arg) for arg in launch.args] for launch in plan.launches})
        launcher.load(BuiltKernel(code, plan, task, shared=True)).launch(256, 512, 768, 0)
    assert len(fake.events("launch")) == len(found.kernels)


def test_code_that_was_refused_is_loaded_again(opened: Callable[..., Any], fake: FakeDriver) -> None:
    launcher, kernel = opened(), kernel_of()._replace(shared=True)
    fake.fail("cuLibraryLoadData", 200)
    with pytest.raises(LauncherError, match="cuLibraryLoadData"):
        launcher.load(kernel)
    fake.reset()
    launcher.load(kernel)
