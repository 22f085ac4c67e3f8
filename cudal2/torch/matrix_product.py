"""`cudal2.matmul`: as `torch.matmul`, with a library's kernels where they are faster."""

import torch

from cudal2.dispatch.causes import FallbackCause
from cudal2.torch.custom_operator import matmul_operator
from cudal2.torch.torch_session import product, service


def matmul(a: torch.Tensor, b: torch.Tensor) -> torch.Tensor:
    """The product of two tensors, by the rules of `torch.matmul`.

    Two matrices, and a batch of matrices times one matrix, are products that the library may run. Every other form is
    PyTorch's. Raises: what `torch.matmul` raises.
    """
    if a.layout is not torch.strided or b.layout is not torch.strided or a.is_nested or b.is_nested:
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
    if not _plain(a, b):
        return matmul_operator(a, b)
    out = product(a, b)
    return torch.mm(a, b) if out is None else out


def _plain(a: torch.Tensor, b: torch.Tensor) -> bool:
    """Whether nothing looks on: no gradients, tracing, transforms, modes or subclasses. Then the operator's cost is saved."""
    return (
        not (torch.is_grad_enabled() and (a.requires_grad or b.requires_grad))
        and not torch.compiler.is_compiling()
        and type(a) is type(b) is torch.Tensor
        and torch._C._len_torch_dispatch_stack() == 0
        and torch._C._functorch.peek_interpreter_stack() is None
        and torch._C._len_torch_function_stack() == 0
    )


def _by_torch(a: torch.Tensor, b: torch.Tensor, cause: FallbackCause) -> torch.Tensor:
    if not torch.compiler.is_compiling():
        service().fell_back(cause)
    return torch.matmul(a, b)
