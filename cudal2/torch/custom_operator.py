"""`torch.ops.cudal2.matmul`: the product of two matrices as an operator with a fake and gradients.

Each gradient is a product, in the layout in which its operand lies. An operand that is a transposed view gets a transposed view
as its gradient, so nothing is copied.
"""

from typing import Any

import torch

from cudal2.torch.torch_session import product


@torch.library.custom_op("cudal2::matmul", mutates_args=())  # type: ignore[untyped-decorator]
def matmul_operator(a: torch.Tensor, b: torch.Tensor) -> torch.Tensor:
    """The product of an M×K and a K×N matrix. Raises: what `torch.mm` raises."""
    out = product(a, b)
    if out is not None:
        return out
    if not torch.is_autocast_enabled(a.device.type):
        return torch.mm(a, b)
    with torch.autocast(a.device.type, enabled=False):  # the fake has promised the operands' own type
        return torch.mm(a, b)


@matmul_operator.register_fake  # type: ignore[untyped-decorator]
def _fake(a: torch.Tensor, b: torch.Tensor) -> torch.Tensor:
    torch._check(a.dim() == 2 and b.dim() == 2, lambda: "cudal2::matmul takes two matrices")
    torch._check(a.dtype == b.dtype, lambda: f"cudal2::matmul takes one type, not {a.dtype} and {b.dtype}")
    torch._check(a.shape[1] == b.shape[0], lambda: f"cudal2::matmul cannot multiply {a.shape} and {b.shape}")
    return a.new_empty((a.shape[0], b.shape[1]))


@matmul_operator.register_vmap  # type: ignore[untyped-decorator]
def _batched(
    info: Any,  # noqa: ARG001 (PyTorch's signature)
    in_dims: tuple[int | None, int | None],
    a: torch.Tensor,
    b: torch.Tensor,
) -> tuple[torch.Tensor, int]:
    """Under `torch.vmap` a batch of products is PyTorch's."""
    left, right = (one if dim is None else one.movedim(dim, 0) for one, dim in zip((a, b), in_dims, strict=True))
    return torch.matmul(left, right), 0


def _keep(ctx: Any, inputs: tuple[torch.Tensor, torch.Tensor], output: torch.Tensor) -> None:  # noqa: ARG001 (PyTorch's names)
    ctx.save_for_backward(*inputs)


def _gradients(ctx: Any, grad: torch.Tensor) -> tuple[torch.Tensor | None, torch.Tensor | None]:
    a, b = ctx.saved_tensors
    grad_a = grad_b = None
    if ctx.needs_input_grad[0]:
        grad_a = matmul_operator(b, grad.t()).t() if _column_major(a) else matmul_operator(grad, b.t())
    if ctx.needs_input_grad[1]:
        grad_b = matmul_operator(grad.t(), a).t() if _column_major(b) else matmul_operator(a.t(), grad)
    return grad_a, grad_b


def _column_major(matrix: torch.Tensor) -> bool:
    return bool(matrix.stride(0) == 1 and matrix.stride(1) == matrix.shape[0] and matrix.shape[1] > 1)


matmul_operator.register_autograd(_gradients, setup_context=_keep)
