"""`cudal2.matmul`: as `torch.matmul`, with a library's kernels where they are faster."""

import torch

from cudal2.dispatch.causes import FallbackCause
from cudal2.torch.custom_operator import matmul_operator
from cudal2.torch.torch_session import product, service

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
