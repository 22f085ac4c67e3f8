"""The library as a choice of Inductor."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from types import SimpleNamespace

import pytest
import torch

import cudal2
from cudal2.torch.inductor import inductor_choices
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


@pytest.mark.parametrize("chosen", [True, False])
def test_the_library_competes_by_a_minimum_speedup(serving: Serving, chosen: bool) -> None:
    """Inductor's own test setting decides in the place of its timing, which depends on the machine."""
    import torch._inductor.config as config

    torch._dynamo.reset()
    products = serving(TASK)
    a, b = operands()
    assert cudal2.enable_inductor(minimum_speedup=1.05) == ""
    try:
        compiled = torch.compile(lambda x, y: torch.mm(x, y), options={"fx_graph_cache": False})
        with config.patch({"test_configs.force_custom_op_decomposition": chosen}):
            assert_product(compiled(a, b), a, b)
        before = products.platform.launches
        assert_product(compiled(a, b), a, b)
        assert products.platform.launches == before + chosen
    finally:
        cudal2.disable_inductor()


def test_a_minimum_speedup_below_1_is_refused() -> None:
    with pytest.raises(ValueError, match="at least 1"):
        cudal2.enable_inductor(minimum_speedup=0.9)


@pytest.mark.usefixtures("_offered")
def test_code_from_inductor_s_cache_finds_the_function() -> None:
    """Such code is run without compiling, in a process that has compiled nothing yet."""
    from torch._inductor.select_algorithm import extern_kernels

    assert extern_kernels.cudal2_mm_out is inductor_choices.cudal2_mm_out


@pytest.mark.parametrize("module", [None, SimpleNamespace(), SimpleNamespace(register_custom_op_autotuning=lambda op: op)])
def test_a_version_without_a_minimum_speedup_says_so(monkeypatch: pytest.MonkeyPatch, module: SimpleNamespace | None) -> None:
    real = inductor_choices._inductor
    monkeypatch.setattr(inductor_choices, "_inductor", lambda name: module if name == "custom_op" else real(name))
    assert "no autotuning of operators" in cudal2.enable_inductor(minimum_speedup=1.05)


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
        ("mm", SimpleNamespace(), "no external_matmul"),
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
