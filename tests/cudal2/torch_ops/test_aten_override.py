"""Kernels of PyTorch replaced: the same code that replaces them for CUDA, on the CPU's dispatch key."""

from __future__ import annotations

import threading
from collections.abc import Callable
from pathlib import Path

import pytest
import torch
from torch.nn.functional import linear

import cudal2
from cudal2.dispatch.decision import FallbackCause
from cudal2.torch import aten_override, torch_session
from cudal2.torch.aten_override import original_kernel
from cudal2_agent.contract.records.task import GemmTask
from tests.cudal2.torch_ops.matrices import TASK, assert_product, linear_tasks, operands
from tests.doubles.host_products import HostPlatform, HostProducts

Serving = Callable[..., HostProducts]

pytestmark = pytest.mark.usefixtures("language")


def test_mm_is_served_while_it_is_enabled(serving: Serving) -> None:
    products = serving(TASK)
    a, b = operands()
    cudal2.enable()
    for product in (torch.mm, torch.matmul, lambda x, y: x @ y):
        assert_product(product(a, b), a, b)
    assert products.platform.launches == 3
    cudal2.disable()
    assert_product(torch.mm(a, b), a, b)
    assert products.platform.launches == 3


def test_what_is_not_served_runs_the_original_kernel(serving: Serving) -> None:
    products = serving(TASK)
    cudal2.enable()
    a, b = torch.randn(5, 7), torch.randn(7, 3)
    torch.testing.assert_close(torch.mm(a, b), torch.einsum("mk,kn->mn", a, b))
    assert products.service.counts.fallbacks() == {FallbackCause.TYPE: 1}


@pytest.mark.parametrize(
    ("a", "b"),
    [
        (torch.randn(5, 7), torch.randn(6, 3)),
        (torch.randn(5, 7).half(), torch.randn(7, 3)),
        (torch.randn(5), torch.randn(5, 3)),
    ],
    ids=["sizes", "types", "ranks"],
)
def test_errors_are_torch_s_own(serving: Serving, a: torch.Tensor, b: torch.Tensor) -> None:
    serving(TASK)
    with pytest.raises((RuntimeError, ValueError)) as plain:
        torch.mm(a, b)
    with cudal2.enable(), pytest.raises(plain.type) as served:
        torch.mm(a, b)
    assert str(served.value) == str(plain.value)


def test_a_linear_layer_is_served_forward_and_backward(serving: Serving) -> None:
    products = serving(*linear_tasks(tokens=48, outputs=32, inputs=64))
    generator = torch.Generator().manual_seed(7)
    x, weight = (torch.randn(*size, generator=generator).div(4).half().requires_grad_() for size in ((3, 16, 64), (32, 64)))
    linear(x, weight).square().sum().backward()
    expected = x.grad, weight.grad
    x.grad = weight.grad = None
    with cudal2.enable():
        linear(x, weight).square().sum().backward()
    assert products.platform.launches == 3
    assert products.service.counts.fallbacks() == {}
    torch.testing.assert_close((x.grad, weight.grad), expected, rtol=2e-2, atol=2e-2)


def with_bias(*tasks: GemmTask) -> list[GemmTask]:
    return [task.model_copy(update={"bias": True}) for task in tasks]


def test_a_linear_layer_with_a_bias_is_served_forward_and_backward(serving: Serving) -> None:
    forward, *backward = linear_tasks(tokens=48, outputs=32, inputs=64)
    products = serving(*with_bias(forward), *backward)
    generator = torch.Generator().manual_seed(7)
    sizes = (3, 16, 64), (32, 64), (32,)
    x, weight, bias = (torch.randn(*size, generator=generator).div(4).half().requires_grad_() for size in sizes)
    expected = linear(x, weight, bias)
    expected.square().sum().backward()
    grads = x.grad, weight.grad, bias.grad
    x.grad = weight.grad = bias.grad = None
    with cudal2.enable():
        out = linear(x, weight, bias)
        out.square().sum().backward()
    assert products.platform.launches == 3
    assert products.service.counts.fallbacks() == {}
    torch.testing.assert_close(out, expected, rtol=2e-3, atol=2e-3)
    torch.testing.assert_close((x.grad, weight.grad, bias.grad), grads, rtol=2e-2, atol=2e-2)


def test_a_bias_has_an_entry_of_its_own(serving: Serving) -> None:
    a, b = operands()
    bias = torch.randn(32).half()
    expected = (a.float() @ b.float() + bias.float()).half()
    for tasks, launches in (((TASK,), (0, 1)), (with_bias(TASK), (1, 0)), ((TASK, *with_bias(TASK)), (1, 1))):
        products = serving(*tasks)
        with cudal2.enable():
            out = torch.addmm(bias, a, b)
            added = products.platform.launches
            plain = torch.mm(a, b)
        assert (added, products.platform.launches - added) == launches
        assert products.service.counts.fallbacks() == ({} if launches == (1, 1) else {FallbackCause.NO_ENTRY: 1})
        torch.testing.assert_close(out, expected, rtol=2e-3, atol=2e-3)
        assert_product(plain, a, b)


@pytest.mark.parametrize(
    ("bias", "scales", "cause"),
    [
        (torch.randn(32).half(), {"beta": 0.5, "alpha": 2}, FallbackCause.BIAS),
        (torch.randn(32).half(), {"beta": 0}, FallbackCause.BIAS),
        (torch.randn(1, 32).half(), {}, FallbackCause.BIAS),
        (torch.randn(16, 32).half(), {}, FallbackCause.BIAS),
        (torch.randn(1).half(), {}, FallbackCause.BIAS),
        (torch.randn(64).half()[::2], {}, FallbackCause.BIAS),
        (torch.randn(33).half()[1:], {}, FallbackCause.UNALIGNED),
    ],
    ids=["scaled", "left out", "a row", "a matrix", "one number", "with gaps", "unaligned"],
)
def test_what_is_no_row_of_elements_goes_to_the_original_kernel(
    serving: Serving, bias: torch.Tensor, scales: dict[str, float], cause: FallbackCause
) -> None:
    products = serving(*with_bias(TASK))
    a, b = operands()
    expected = torch.addmm(bias, a, b, **scales)
    with cudal2.enable():
        for _ in range(2):
            assert torch.equal(torch.addmm(bias, a, b, **scales), expected)
    assert (products.platform.launches, products.service.counts.fallbacks()) == (0, {cause: 2})


def test_the_out_forms_are_served(serving: Serving) -> None:
    products = serving(TASK, *with_bias(TASK))
    a, b = operands()
    bias, out, with_one = torch.randn(32).half(), torch.empty(16, 32).half(), torch.empty(16, 32).half()
    with cudal2.enable():
        assert torch.mm(a, b, out=out) is out
        assert torch.addmm(bias, a, b, out=with_one) is with_one
    assert_product(out, a, b)
    torch.testing.assert_close(with_one, (a.float() @ b.float() + bias.float()).half(), rtol=2e-3, atol=2e-3)
    assert (products.platform.launches, products.service.counts.fallbacks()) == (2, {})
    torch.mm(a, b, out=out)
    assert products.platform.launches == 2


def outputs() -> dict[str, torch.Tensor]:
    a, _ = operands(SQUARE)
    return {
        "another size": torch.empty(0).half(),
        "transposed": torch.empty(64, 64).half().t(),
        "with gaps": torch.empty(64, 65).half()[:, :64],
        "an operand": a,
    }


SQUARE = GemmTask(m=64, n=64, k=64)


@pytest.mark.filterwarnings("ignore:An output with one or more elements was resized")
@pytest.mark.parametrize("kind", list(outputs()))
def test_an_output_that_no_kernel_writes_goes_to_the_original_kernel(serving: Serving, kind: str) -> None:
    products = serving(SQUARE)
    _, b = operands(SQUARE)
    out, plain = outputs()[kind], outputs()[kind]
    a, other = (one if kind == "an operand" else operands(SQUARE)[0] for one in (out, plain))
    torch.mm(other, b, out=plain)
    with cudal2.enable():
        torch.mm(a, b, out=out)
    torch.testing.assert_close(out, plain, rtol=0, atol=0, equal_nan=True)  # an operand is read while it is written
    assert (out.shape, out.stride()) == (plain.shape, plain.stride())
    assert (products.platform.launches, products.service.counts.fallbacks()) == (0, {FallbackCause.OUTPUT: 1})


def test_compiled_code_is_served(serving: Serving) -> None:
    """Inductor writes code that calls the `out` forms. It is the same code with and without the library."""
    torch._dynamo.reset()
    forward, *_ = linear_tasks(tokens=48, outputs=32, inputs=64)
    products = serving(forward, *with_bias(forward))
    generator = torch.Generator().manual_seed(7)
    x, weight, bias = (torch.randn(*size, generator=generator).half() for size in ((48, 64), (32, 64), (32,)))
    compiled = torch.compile(lambda x: (linear(x, weight), linear(x, weight, bias)), options={"fx_graph_cache": False})
    with torch.no_grad():
        plain = compiled(x)
        assert products.platform.launches == 0
        with cudal2.enable():
            served = compiled(x)
    assert products.platform.launches == 2
    torch.testing.assert_close(served, plain, rtol=2e-3, atol=2e-3)


def test_only_the_named_operators_are_replaced(serving: Serving) -> None:
    products = serving(TASK)
    with cudal2.enable(operators=("mm",)):
        torch.addmm(torch.zeros(32).half(), *operands())
    assert products.service.counts.fallbacks() == {}
    with pytest.raises(ValueError, match="bmm cannot be replaced"):
        cudal2.enable(operators=("bmm",))


def test_a_block_puts_back_what_was_there_before(serving: Serving) -> None:
    products = serving(TASK)
    with cudal2.enable():
        with cudal2.enable(operators=("mm",)):
            torch.mm(*operands())
        torch.mm(*operands())
    torch.mm(*operands())
    assert products.platform.launches == 2


def test_an_error_in_a_block_ends_it(serving: Serving) -> None:
    products = serving(TASK)
    with pytest.raises(KeyError), cudal2.enable():
        raise KeyError
    torch.mm(*operands())
    assert products.platform.launches == 0


def test_a_torch_without_get_kernel_falls_back_to_the_out_form(serving: Serving, monkeypatch: pytest.MonkeyPatch) -> None:
    products = serving(TASK)
    monkeypatch.delattr(torch.library, "get_kernel")
    registered: dict[tuple[str, str], aten_override.ReplacedKernel] = {}
    monkeypatch.setattr(aten_override, "_REPLACED", registered)
    assert original_kernel("mm", "CPU") is aten_override._OUT_FORMS["mm"]
    a, b, bias = torch.randn(5, 7), torch.randn(7, 3), torch.randn(3)
    expected = torch.mm(a, b), torch.addmm(bias, a, b, alpha=2)
    with cudal2.enable():
        assert torch.equal(torch.mm(a, b), expected[0])
        assert torch.equal(torch.addmm(bias, a, b, alpha=2), expected[1])
        assert_product(torch.mm(*operands()), *operands())
    assert products.platform.launches == 1
    assert len(registered) == 2
    aten_override.unregister()
    torch.mm(*operands())
    assert (registered, products.platform.launches) == ({}, 1)


def test_nothing_is_replaced_without_a_gpu(serving: Serving) -> None:
    products = serving(TASK, platform=HostPlatform(why_missing="there is no GPU"))
    with cudal2.enable():
        assert_product(torch.mm(*operands()), *operands())
        assert products.service.counts.fallbacks() == {}
        assert "not enabled: there is no GPU" in str(cudal2.status())


def test_threads_enable_and_disable_while_others_multiply(serving: Serving) -> None:
    """PyTorch frees a kernel whose registration ends, although another thread may be calling it: none may end."""
    serving(TASK)
    cudal2.enable()
    a, b = operands()
    expected = (a.float() @ b.float()).to(a.dtype)
    wrong: list[str] = []
    ended = threading.Event()

    def multiply() -> None:
        while not ended.is_set():
            try:
                if not torch.allclose(torch.mm(a, b), expected, rtol=1e-2, atol=1e-2):
                    wrong.append("another product")
            except RuntimeError as error:
                wrong.append(str(error))

    threads = [threading.Thread(target=multiply) for _ in range(3)]
    for thread in threads:
        thread.start()
    registered = dict(aten_override._REPLACED)
    for _ in range(2000):
        cudal2.enable()
        cudal2.disable()
    assert registered == aten_override._REPLACED
    ended.set()
    for thread in threads:
        thread.join()
    assert wrong == []


def test_another_service_takes_over_without_a_gap(serving: Serving, tmp_path: Path) -> None:
    """Every product of a thread is served by one of two services that are exchanged all the time."""
    services = [serving(TASK).service, HostProducts(tmp_path, [TASK]).service]
    a, b = operands()
    calls = 0
    ended = threading.Event()

    def multiply() -> None:
        nonlocal calls
        while not ended.is_set():
            torch.mm(a, b)
            calls += 1

    with cudal2.enable():
        thread = threading.Thread(target=multiply)
        thread.start()
        for number in range(200):
            torch_session.use_service(services[number % 2])
        ended.set()
        thread.join()
    assert sum(sum(service.counts.served().values()) for service in services) == calls > 0


def test_a_dimension_of_one_is_served(serving: Serving) -> None:
    row = GemmTask(m=1, n=32, k=64)
    products = serving(row)
    with cudal2.enable():
        assert_product(torch.mm(*operands(row)), *operands(row))
    assert products.platform.launches == 1


class Marked(torch.Tensor):
    """A subclass whose products are of the subclass."""


def special_pairs() -> dict[str, tuple[torch.Tensor, torch.Tensor]]:
    a, b = operands()
    with torch.inference_mode():
        inference = a.clone()
    return {
        "negated lazily": (torch._neg_view(a), b),
        "a parameter": (torch.nn.Parameter(a), b),
        "a subclass": (a.as_subclass(Marked), b),
        "sparse": (a.float().to_sparse(), b.float()),
        "of inference": (inference, b),
        "on no device": (a.to("meta"), b.to("meta")),
        "complex and conjugated": (torch.view_as_complex(torch.ones(4, 4, 2)).conj(), torch.ones(4, 4, dtype=torch.complex64)),
        "shared pages": (torch._lazy_clone(a), b),
    }


@pytest.mark.parametrize("way", [torch.mm, cudal2.matmul])
@pytest.mark.parametrize("kind", list(special_pairs()))
def test_a_special_operand_gives_what_torch_gives(
    serving: Serving, kind: str, way: Callable[[torch.Tensor, torch.Tensor], torch.Tensor]
) -> None:
    serving(TASK)
    a, b = special_pairs()[kind]
    plain = torch.mm(a, b)
    with cudal2.enable():
        out = way(a, b)
    assert (type(out), out.dtype, out.device, out.layout) == (type(plain), plain.dtype, plain.device, plain.layout)
    assert (out.requires_grad, out.is_inference()) == (plain.requires_grad, plain.is_inference())
    if kind == "on no device":
        assert out.shape == plain.shape
    else:
        torch.testing.assert_close(out.detach(), plain.detach(), rtol=1e-2, atol=1e-2)
