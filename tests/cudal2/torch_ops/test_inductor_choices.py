"""The library as a choice of Inductor."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from types import SimpleNamespace

import pytest
import torch

import cudal2
from cudal2.torch import inductor_choices
from tests.cudal2.torch_ops.matrices import TASK, assert_product, operands
from tests.doubles.host_products import HostProducts

Serving = Callable[..., HostProducts]
# Without PyTorch's own kernels Inductor has one choice: nothing is timed, and the result does not depend on the machine.
ONLY_OURS = {"max_autotune": True, "max_autotune_gemm_backends": "TRITON", "fx_graph_cache": False}


@pytest.fixture
def _offered() -> Iterator[None]:
    assert cudal2.enable_inductor() == ""
    yield
    cudal2.disable_inductor()


@pytest.mark.usefixtures("_offered")
@pytest.mark.parametrize("product", [torch.mm, cudal2.matmul], ids=["aten.mm", "cudal2.matmul"])
def test_compiled_products_run_the_library(serving: Serving, product: Callable[..., torch.Tensor]) -> None:
    products = serving(TASK)
    compiled = torch.compile(lambda a, b: product(a, b), options=ONLY_OURS)
    a, b = operands()
    assert_product(compiled(a, b), a, b)
    before = products.platform.launches
    assert before > 0
    assert_product(compiled(a, b), a, b)
    assert products.platform.launches == before + 1


def test_compiled_code_falls_back(serving: Serving) -> None:
    serving(TASK)
    a, b, out = torch.randn(5, 7), torch.randn(7, 3), torch.empty(5, 3)
    inductor_choices.cudal2_mm_out(a, b, out=out)
    assert torch.equal(out, torch.mm(a, b))


def test_enabling_twice_offers_once() -> None:
    import torch._inductor.config as config

    assert cudal2.enable_inductor() == cudal2.enable_inductor() == ""
    assert config.external_matmul.count(inductor_choices.cudal2_mm_out) == 1
    cudal2.disable_inductor()
    assert inductor_choices.cudal2_mm_out not in config.external_matmul
    cudal2.disable_inductor()


@pytest.mark.parametrize(
    ("part", "module", "said"),
    [
        ("config", SimpleNamespace(), "no external_matmul"),
        ("config", None, "no external_matmul"),
        ("lowering", SimpleNamespace(register_lowering=None), "no lowerings"),
        ("lowering", None, "no lowerings"),
    ],
)
def test_a_border_that_a_version_lacks_is_said(
    monkeypatch: pytest.MonkeyPatch, part: str, module: SimpleNamespace | None, said: str
) -> None:
    real = inductor_choices._inductor
    monkeypatch.setattr(inductor_choices, "_inductor", lambda name: module if name == part else real(name))
    assert said in cudal2.enable_inductor()
    monkeypatch.undo()
    cudal2.disable_inductor()
