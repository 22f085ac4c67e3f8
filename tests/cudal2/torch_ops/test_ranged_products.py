"""Products of any M in the range of an entry: one kernel serves them, eager, in graphs and in compiled code."""

from __future__ import annotations

import threading
from collections.abc import Callable

import pytest
import torch

import cudal2
from cudal2.dispatch.decision import FallbackCause
from cudal2.torch.background_builds import BuildOrder
from cudal2_agent.contract.records.task import GemmTask
from tests.cudal2.torch_ops.matrices import TASK, assert_product, operands
from tests.doubles.host_products import HostPlatform, HostProducts

Serving = Callable[..., HostProducts]
SMALLEST = 5


def rows(m: int, task: GemmTask = TASK) -> tuple[torch.Tensor, torch.Tensor]:
    return operands(task.model_copy(update={"m": m}))


def test_every_m_of_the_range_is_served_by_one_cubin(serving: Serving, language: str) -> None:
    products = serving(TASK, smallest=SMALLEST)
    assert language in ("Python", "C++")
    given = [rows(m) for m in (TASK.m, TASK.m - 1, 9, SMALLEST, SMALLEST - 1, 1, 9)]
    with cudal2.enable():
        found = [torch.mm(a, b) for a, b in given]
    for out, (a, b) in zip(found, given, strict=True):
        assert_product(out, a, b)
    (entry,) = products.library
    assert products.service.counts.served() == {entry.id: 5}
    assert products.service.counts.fallbacks() == {FallbackCause.NO_ENTRY: 2}
    assert products.builder.orders == []


def test_a_range_is_built_in_the_background_once(serving: Serving, monkeypatch: pytest.MonkeyPatch) -> None:
    products = serving(TASK, ready=False, smallest=SMALLEST)
    build, asked = products.builder.build, threading.Event()
    monkeypatch.setattr(products.builder, "build", lambda order: asked.wait(10) and build(order))
    a, b = rows(9)
    assert products.service.product(a, b) is None
    asked.set()
    assert products.service.builds.wait(10)
    for m in (9, 8, 7):
        assert_product(products.service.product(*rows(m)), *rows(m))
    (entry,) = products.library
    assert [(order.entry, order.ranged) for order in products.builder.orders] == [(entry, True)]
    assert products.service.counts.fallbacks() == {FallbackCause.BUILDING: 1}


def test_a_range_whose_build_ends_at_once_is_served_by_the_same_call(serving: Serving, monkeypatch: pytest.MonkeyPatch) -> None:
    products = serving(TASK, ready=False, smallest=SMALLEST)
    builds = products.service.builds
    request = builds.request

    def ended_at_once(order: BuildOrder) -> FallbackCause:
        cause = request(order)
        assert builds.wait(10)
        return cause

    monkeypatch.setattr(builds, "request", ended_at_once)
    assert_product(products.service.product(*rows(9)), *rows(9))
    assert len(products.builder.orders) == 1


def test_a_graph_may_be_captured_for_an_m_that_never_ran(serving: Serving) -> None:
    products = serving(TASK, smallest=SMALLEST)
    assert_product(products.service.product(*rows(TASK.m)), *rows(TASK.m))
    products.platform.is_capturing = True
    assert_product(products.service.product(*rows(7)), *rows(7))
    assert products.service.counts.fallbacks() == {}


def test_an_m_below_the_range_loads_it_for_graphs_too(serving: Serving) -> None:
    products = serving(TASK, smallest=SMALLEST)
    assert products.service.product(*rows(2)) is None
    products.platform.is_capturing = True
    assert_product(products.service.product(*rows(7)), *rows(7))


def test_nothing_is_loaded_within_a_capture(serving: Serving) -> None:
    products = serving(TASK, smallest=SMALLEST)
    products.platform.is_capturing = True
    assert products.service.product(*rows(7)) is None
    assert products.service.counts.fallbacks() == {FallbackCause.CAPTURING: 1}
    products.platform.is_capturing = False
    assert_product(products.service.product(*rows(7)), *rows(7))


@pytest.mark.parametrize("harm", ["damaged", "refused"])
def test_a_range_that_cannot_be_loaded_leaves_the_entry_in_use(serving: Serving, harm: str) -> None:
    platform = HostPlatform()
    products = serving(TASK, smallest=SMALLEST, platform=platform)
    (entry,) = products.library
    if harm == "damaged":
        products.builder.failing = True
        products.prepared.range_paths(entry, 132)[0].write_bytes(b"other code")
    else:
        platform.refusing = True
        assert products.service.product(*rows(9)) is None
        platform.refusing = False
    assert_product(products.service.product(*rows(TASK.m)), *rows(TASK.m))
    assert products.service.product(*rows(9)) is None
    assert products.service.builds.wait(10)
    assert products.service.product(*rows(9)) is None
    [notice] = products.service.notices.texts()
    assert ("is damaged" if harm == "damaged" else "cuLibraryLoadData failed") in notice
    causes = set(products.service.counts.fallbacks())
    assert causes <= {FallbackCause.UNUSABLE, FallbackCause.BUILDING, FallbackCause.BUILD_FAILED}


def test_compiled_code_of_any_size_serves_each_m(serving: Serving) -> None:
    torch._dynamo.reset()
    products = serving(TASK, smallest=SMALLEST)
    _, b = rows(1)
    given = [rows(m)[0] for m in (3, 7, 9, 12, TASK.m)]
    with cudal2.enable():
        compiled = torch.compile(lambda a, b: torch.mm(a, b) + 1, dynamic=True, backend="aot_eager")
        found = [compiled(a, b) for a in given]
    for out, a in zip(found, given, strict=True):
        torch.testing.assert_close(out, (a.float() @ b.float()).half() + 1)
    assert products.platform.launches == 4
    assert products.service.counts.fallbacks() == {FallbackCause.NO_ENTRY: 1}


@pytest.mark.parametrize("m", [3, 7])
def test_a_choice_of_inductor_is_not_frozen_to_the_m_that_it_was_made_for(serving: Serving, m: int) -> None:
    torch._dynamo.reset()
    products = serving(TASK, smallest=SMALLEST)
    assert cudal2.enable_inductor() == ""
    try:
        options = {"max_autotune": True, "max_autotune_gemm_backends": "TRITON", "fx_graph_cache": False}
        compiled = torch.compile(lambda a, b: torch.mm(a, b), dynamic=True, options=options)
        a, b = rows(m)
        assert_product(compiled(a, b), a, b)
        for other in (9, 4, 12):
            before = products.platform.launches
            assert_product(compiled(rows(other)[0], b), rows(other)[0], b)
            assert products.platform.launches == before + (other >= SMALLEST)
    finally:
        cudal2.disable_inductor()
