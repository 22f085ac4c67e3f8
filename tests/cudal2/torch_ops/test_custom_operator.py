"""`torch.ops.cudal2.matmul` and `cudal2.matmul`: products, gradients, shapes, and what PyTorch asks of an operator."""

from __future__ import annotations

from collections.abc import Callable

import pytest
import torch

import cudal2
from cudal2.dispatch.decision import FallbackCause
from cudal2_agent.contract.records.task import ElementType, GemmTask, Layout
from tests.cudal2.torch_ops.matrices import TASK, assert_product, backward_tasks, operands
from tests.doubles.host_products import HostProducts

Serving = Callable[..., HostProducts]
OPERATOR = torch.ops.cudal2.matmul.default


@pytest.mark.parametrize("layout", list(Layout))
@pytest.mark.parametrize("grad", [False, True])
def test_the_operator_passes_opcheck(serving: Serving, layout: Layout, grad: bool) -> None:
    task = TASK.model_copy(update={"layout": layout})
    products = serving(task)
    a, b = (one.requires_grad_(grad) for one in operands(task))
    torch.library.opcheck(OPERATOR, (a, b))
    assert products.platform.launches > 0


def test_opcheck_passes_where_nothing_is_served(serving: Serving) -> None:
    serving(TASK)
    outcomes = torch.library.opcheck(OPERATOR, (torch.randn(3, 4, requires_grad=True), torch.randn(4, 5)))
    assert set(outcomes.values()) == {"SUCCESS"}


@pytest.mark.parametrize("layout", list(Layout))
@pytest.mark.parametrize("element", list(ElementType))
def test_gradients_are_served_and_right(serving: Serving, layout: Layout, element: ElementType) -> None:
    task = TASK.model_copy(update={"layout": layout, "element": element})
    a, b = (one.detach().requires_grad_() for one in operands(task))
    torch.mm(a, b).square().sum().backward()
    expected, a.grad, b.grad = (a.grad, b.grad), None, None
    every = [GemmTask(m=m, n=n, k=k, layout=one, element=element) for m, n, k in _sizes(task) for one in Layout]
    products = serving(*every)
    cudal2.matmul(a, b).square().sum().backward()
    assert products.platform.launches == 3
    assert products.service.counts.fallbacks() == {}
    torch.testing.assert_close((a.grad, b.grad), expected, rtol=3e-2, atol=3e-1)
    assert (a.grad.stride(), b.grad.stride()) == (a.stride(), b.stride())


def _sizes(task: GemmTask) -> set[tuple[int, int, int]]:
    m, n, k = task.m, task.n, task.k
    return {(m, n, k), (m, k, n), (k, m, n), (k, n, m), (n, k, m)}


def test_row_major_operands_use_tn_and_nt_for_their_gradients(serving: Serving) -> None:
    products = serving(TASK, *backward_tasks(TASK))
    a, b = (one.requires_grad_() for one in operands())
    cudal2.matmul(a, b).sum().backward(torch.ones(()))
    # The gradient of a sum is an expanded scalar, which has no layout in memory: autograd's own products copy it too.
    assert products.service.counts.fallbacks() == {FallbackCause.LAYOUT: 2}
    cudal2.matmul(a, b).square().sum().backward()
    assert products.platform.launches == 4


def test_gradients_of_gradients_agree_with_torch(serving: Serving) -> None:
    serving(TASK)
    a, b = torch.randn(3, 4, dtype=torch.double, requires_grad=True), torch.randn(4, 5, dtype=torch.double, requires_grad=True)
    assert torch.autograd.gradcheck(OPERATOR, (a, b))
    assert torch.autograd.gradgradcheck(OPERATOR, (a, b))


def test_a_gradient_that_is_not_asked_for_is_not_computed(serving: Serving) -> None:
    products = serving(TASK, *backward_tasks(TASK))
    a, b = operands()
    cudal2.matmul(a, b.requires_grad_()).square().sum().backward()
    assert products.platform.launches == 2


def test_a_batch_times_a_matrix_is_folded(serving: Serving) -> None:
    products = serving(TASK)
    a, b = operands()
    out = cudal2.matmul(a.view(2, 2, 4, 64), b)
    assert out.shape == (2, 2, 4, 32)
    assert_product(out.view(16, 32), a, b)
    assert products.platform.launches == 1


@pytest.mark.parametrize(
    ("a", "b", "cause"),
    [
        (torch.randn(64), torch.randn(64, 32), FallbackCause.RANK),
        (torch.randn(16, 64), torch.randn(64), FallbackCause.RANK),
        (torch.randn(64), torch.randn(64), FallbackCause.RANK),
        (torch.randn(2, 16, 64), torch.randn(2, 64, 32), FallbackCause.RANK),
        (torch.randn(16, 2, 64).transpose(0, 1), torch.randn(64, 32), FallbackCause.RANK),
        (torch.randn(0, 16, 64), torch.randn(64, 32), FallbackCause.EMPTY),
        (torch.randn(2, 16, 0), torch.randn(0, 32), FallbackCause.EMPTY),
        (torch.randn(16, 0), torch.randn(0, 32), FallbackCause.EMPTY),
    ],
)
def test_other_shapes_are_torch_s(serving: Serving, a: torch.Tensor, b: torch.Tensor, cause: FallbackCause) -> None:
    products = serving(TASK)
    a, b = a.half(), b.half()
    assert torch.equal(cudal2.matmul(a, b), torch.matmul(a, b))
    assert products.service.counts.fallbacks() == {cause: 1}


@pytest.mark.filterwarnings("ignore:The PyTorch API of nested tensors")
def test_sparse_and_nested_tensors_are_torch_s(serving: Serving) -> None:
    products = serving(TASK)
    a, b = operands()
    torch.testing.assert_close(cudal2.matmul(a.float().to_sparse(), b.float()), a.float() @ b.float())
    nested = torch.nested.nested_tensor([a.float(), a.float()])
    parts = cudal2.matmul(nested, torch.nested.nested_tensor([b.float(), b.float()])).unbind()
    torch.testing.assert_close(parts[1], a.float() @ b.float())
    assert products.service.counts.fallbacks() == {FallbackCause.LAYOUT: 2}


@pytest.mark.parametrize(
    ("a", "b"),
    [
        (torch.randn(5, 7), torch.randn(6, 3)),
        (torch.randn(2, 5, 7), torch.randn(6, 3)),
        (torch.randn(5, 7).half(), torch.randn(7, 3)),
        (torch.tensor(1.0), torch.randn(7, 3)),
    ],
)
def test_errors_are_torch_s_own(serving: Serving, a: torch.Tensor, b: torch.Tensor) -> None:
    serving(TASK)
    with pytest.raises(RuntimeError) as plain:
        torch.matmul(a, b)
    with pytest.raises(RuntimeError) as served:
        cudal2.matmul(a, b)
    assert str(served.value) == str(plain.value)


def test_autocast_casts_as_for_torch(serving: Serving) -> None:
    serving(TASK)
    with torch.autocast("cpu", dtype=torch.bfloat16):
        assert cudal2.matmul(torch.randn(3, 4), torch.randn(4, 5)).dtype is torch.bfloat16
        assert OPERATOR(torch.randn(3, 4), torch.randn(4, 5)).dtype is torch.float32, "as its fake says"


def test_fake_tensors_see_the_operator(serving: Serving) -> None:
    from torch._subclasses.fake_tensor import FakeTensorMode

    serving(TASK)
    with FakeTensorMode():
        out = cudal2.matmul(torch.empty(3, 4).half(), torch.empty(4, 5).half())
        assert (out.shape, out.dtype, type(out).__name__) == ((3, 5), torch.float16, "FakeTensor")


@pytest.mark.parametrize("in_dims", [(0, None), (None, 2), (1, 0)])
def test_a_vmap_is_torch_s_batched_product(serving: Serving, in_dims: tuple[int | None, int | None]) -> None:
    serving(TASK)
    a, b = (
        torch.randn(3, 4) if in_dims[0] is None else torch.randn(3, 4).expand(2, 3, 4).movedim(0, in_dims[0]),
        torch.randn(4, 5) if in_dims[1] is None else torch.randn(2, 4, 5).movedim(0, in_dims[1]),
    )
    torch.testing.assert_close(torch.vmap(cudal2.matmul, in_dims)(a, b), torch.vmap(torch.matmul, in_dims)(a, b))
