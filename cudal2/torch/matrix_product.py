"""`cudal2.matmul`: as `torch.matmul`, with a library's kernels where they are faster.

`torch.ops.cudal2.matmul` is the product of two matrices as an operator with a fake and gradients. Each gradient is a product,
in the layout in which its operand lies. An operand that is a transposed view gets a transposed view as its gradient, so nothing
is copied.
"""

from typing import Any

import torch

from cudal2.dispatch.decision import FallbackCause
from cudal2.torch.torch_session import product, service


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


# Bound once: looking names up in modules costs as much as the calls.
_compiling, _grad_enabled = torch.compiler.is_compiling, torch.is_grad_enabled
_any_autocast = torch._C._is_any_autocast_enabled
_dispatch_modes, _function_modes = torch._C._len_torch_dispatch_stack, torch._C._len_torch_function_stack
_transforms = torch._C._functorch.peek_interpreter_stack
_STRIDED = torch.strided


def matmul(a: torch.Tensor, b: torch.Tensor) -> torch.Tensor:
    """The product of two tensors, by the rules of `torch.matmul`.

    Two matrices, and a batch of matrices times one matrix, are products that the library may run. Every other form is
    PyTorch's. Raises: what `torch.matmul` raises.
    """
    if _plain(a, b) and a.dim() == b.dim() == 2:
        return _directly(a, b)
    if a.layout is not _STRIDED or b.layout is not _STRIDED or a.is_nested or b.is_nested:
        return _by_torch(a, b, FallbackCause.LAYOUT)
    if torch.is_autocast_enabled(a.device.type):
        return _by_torch(a, b, FallbackCause.AUTOCAST)
    if a.dim() == b.dim() == 2:
        return _matrices(a, b)
    if a.dim() < 2 or b.dim() != 2 or not a.is_contiguous() or a.shape[-1] != b.shape[0]:
        return _by_torch(a, b, FallbackCause.RANK)
    if a.numel() == 0:
        return _by_torch(a, b, FallbackCause.EMPTY)
    return _matrices(a.flatten(0, -2), b).unflatten(0, a.shape[:-1])


def _matrices(a: torch.Tensor, b: torch.Tensor) -> torch.Tensor:
    if _plain(a, b):
        return _directly(a, b)
    out: torch.Tensor = matmul_operator(a, b)
    return out


def _directly(a: torch.Tensor, b: torch.Tensor) -> torch.Tensor:
    out = product(a, b)
    return torch.mm(a, b) if out is None else out


def _plain(a: torch.Tensor, b: torch.Tensor) -> bool:
    """Whether nothing looks on: no gradients, tracing, autocast, transforms, modes or subclasses. The operator costs more."""
    return (
        not _compiling()
        and not (_grad_enabled() and (a.requires_grad or b.requires_grad))
        and not _any_autocast()
        and type(a) is type(b) is torch.Tensor
        and a.layout is _STRIDED
        and b.layout is _STRIDED
        and not (a.is_nested or b.is_nested)
        and not (a.is_neg() or b.is_neg())  # negated when it is read: memory holds other values
        and _dispatch_modes() == 0
        and _function_modes() == 0
        and _transforms() is None
    )


def _by_torch(a: torch.Tensor, b: torch.Tensor, cause: FallbackCause) -> torch.Tensor:
    if not _compiling():
        service().counts.fell_back(cause)
    return torch.matmul(a, b)
