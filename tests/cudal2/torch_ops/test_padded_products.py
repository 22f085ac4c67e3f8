"""A product of fewer rows than an entry has: built in the background for its M, launched for it, counted for the entry."""

from __future__ import annotations

from collections.abc import Callable

import pytest
import torch

from cudal2.dispatch.decision import FallbackCause
from tests.cudal2.torch_ops.matrices import TASK, assert_product, operands
from tests.doubles.host_products import HostProducts
from tests.doubles.libraries import PADDED_M_RULE

Serving = Callable[..., HostProducts]
FEWER = TASK.model_copy(update={"m": 13})  # 1.29 * 13 / 16 is 1.05
TOO_FEW = TASK.model_copy(update={"m": 12})


@pytest.fixture(autouse=True)
def _rule(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("cudal2.torch.device_dispatch.shipped_rule", lambda: PADDED_M_RULE)


def test_a_lent_kernel_is_built_and_then_serves_its_m_alone(serving: Serving) -> None:
    products = serving(TASK)
    (entry,) = products.library
    a, b = operands(FEWER)
    assert products.service.product(a, b) is None, "the kernel of 16 rows is ready, and would write over the end of D"
    assert products.service.builds.wait(10)
    assert_product(products.service.product(a, b), a, b)
    [order] = products.builder.orders
    assert (order.entry, order.task, order.library) == (entry, FEWER, products.library.path)
    assert_product(products.service.product(*operands()), *operands())
    assert products.service.counts.served() == {entry.id: 2}
    assert products.service.counts.fallbacks() == {FallbackCause.BUILDING: 1}
    assert len(products.platform.kernels) == 2


def test_a_lent_kernel_that_fails_is_not_tried_again_and_the_entry_serves_on(serving: Serving) -> None:
    products = serving(TASK)
    products.builder.failing = True
    for _ in range(2):
        assert products.service.product(*operands(FEWER)) is None
        assert products.service.builds.wait(10)
    assert products.service.counts.fallbacks() == {FallbackCause.BUILDING: 1, FallbackCause.BUILD_FAILED: 1}
    [(name, why)] = products.service.builds.failed().items()
    assert (name.rpartition(" ")[2], why) == (FEWER.shape, "the compiler is missing")
    assert_product(products.service.product(*operands()), *operands())


def test_enabled_operators_run_lent_kernels(serving: Serving, language: str) -> None:
    import cudal2

    products = serving(TASK)
    a, b = operands(FEWER)
    with cudal2.enable():
        torch.mm(a, b)
        assert products.service.builds.wait(10)
        assert_product(torch.mm(a, b), a, b)
    assert language in ("Python", "C++")
    (entry,) = products.library
    assert products.service.counts.served() == {entry.id: 1}


def test_what_the_rule_does_not_allow_is_torch_s(serving: Serving) -> None:
    products = serving(TASK)
    assert products.service.product(*operands(TOO_FEW)) is None
    assert products.service.counts.fallbacks() == {FallbackCause.NO_ENTRY: 1}
    assert products.builder.orders == []
