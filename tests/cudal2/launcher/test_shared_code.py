"""Kernels of one cubin for several sizes: their code is loaded once where they share it."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest

from cudal2_agent.contract.errors import LauncherError
from tests.cudal2.launcher.conftest import TASK, kernel_of
from tests.doubles.fake_driver import FakeDriver


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


def test_code_that_was_refused_is_loaded_again(opened: Callable[..., Any], fake: FakeDriver) -> None:
    launcher, kernel = opened(), kernel_of()._replace(shared=True)
    fake.fail("cuLibraryLoadData", 200)
    with pytest.raises(LauncherError, match="cuLibraryLoadData"):
        launcher.load(kernel)
    fake.reset()
    launcher.load(kernel)
