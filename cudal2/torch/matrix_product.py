"""`cudal2.matmul`: as `torch.matmul`, with a library's kernels where they are faster.

`torch.ops.cudal2.matmul` is the product of two matrices as an operator with a fake and gradients. Each gradient is a product,
in the layout in which its operand lies. An operand that is a transposed view gets a transposed view as its gradient, so nothing
is copied.

Covered: eager calls, gradients of any order, `torch.compile`, `torch.export`, `make_fx`, fake tensors, inference mode.
Not covered: transforms of `torch.func`, forward-mode derivatives, subclasses, modes of a program, tracing by `torch.fx` or
`torch.jit`. There the product is `torch.matmul`, which has a rule for each; the operator is `torch.mm` there.
"""

from typing import Any

import torch
from torch._subclasses.fake_tensor import FakeTensor
from torch._subclasses.functional_tensor import FunctionalTensor
from torch.autograd import forward_ad
from torch.overrides import _get_current_function_mode_stack
from torch.utils._device import DeviceContext

from cudal2.dispatch.decision import FallbackCause
from cudal2.torch.torch_session import product, service

# Bound once: looking names up in modules costs as much as the calls.
_compiling, _grad_enabled = torch.compiler.is_compiling, torch.is_grad_enabled
_any_autocast = torch._C._is_any_autocast_enabled
_dispatch_modes, _function_modes = torch._C._len_torch_dispatch_stack, torch._C._len_torch_function_stack
_dispatch_mode = torch._C._get_dispatch_mode
_transforms, _jit_trace = torch._C._functorch.peek_interpreter_stack, torch._C._get_tracing_state
_STRIDED = torch.strided
_TENSORS = (torch.Tensor, torch.nn.Parameter)
_TRACED_TENSORS = (*_TENSORS, FakeTensor, FunctionalTensor)
_KEYS = torch._C._TorchDispatchModeKey
_TRACERS = (_KEYS.FAKE, _KEYS.PROXY, _KEYS.FUNCTIONAL)

_REGISTRATION = torch.library.Library("cudal2", "FRAGMENT")
_REGISTRATION.define("matmul(Tensor a, Tensor b) -> Tensor", tags=(torch.Tag.pt2_compliant_tag,))
matmul_operator = torch.ops.cudal2.matmul.default


@torch._disable_dynamo  # type: ignore[untyped-decorator]
def _matrix_product(a: torch.Tensor, b: torch.Tensor) -> torch.Tensor:
    """The product of an M×K and a K×N matrix. Raises: what `torch.mm` raises."""
    out = product(a, b) if a.layout is b.layout is _STRIDED else None
    if out is not None:
        return out
    if not torch.is_autocast_enabled(a.device.type):
        return torch.mm(a, b)
    with torch.autocast(a.device.type, enabled=False):  # the fake has promised the operands' own type
        return torch.mm(a, b)


def _fake(a: torch.Tensor, b: torch.Tensor) -> torch.Tensor:
    torch._check(a.dim() == 2 and b.dim() == 2, lambda: "cudal2::matmul takes two matrices")
    torch._check(a.dtype == b.dtype, lambda: f"cudal2::matmul takes one type, not {a.dtype} and {b.dtype}")
    torch._check(a.shape[1] == b.shape[0], lambda: f"cudal2::matmul cannot multiply {a.shape} and {b.shape}")
    return a.new_empty((a.shape[0], b.shape[1]))


def _batched(
    info: Any,  # noqa: ARG001 (PyTorch's signature)
    in_dims: tuple[int | None, int | None],
    a: torch.Tensor,
    b: torch.Tensor,
) -> tuple[torch.Tensor, int]:
    """Under `torch.vmap` a batch of products is PyTorch's."""
    left, right = (one if dim is None else one.movedim(dim, 0) for one, dim in zip((a, b), in_dims, strict=True))
    return torch.matmul(left, right), 0


class _Differentiable(torch.autograd.Function):  # type: ignore[misc]
    """The operator in reverse mode. `keys`: those with which PyTorch has called it."""

    @staticmethod
    def forward(ctx: Any, keys: Any, a: torch.Tensor, b: torch.Tensor) -> torch.Tensor:
        ctx.save_for_backward(a, b)
        return _below_autograd(keys, a, b)

    @staticmethod
    def backward(ctx: Any, grad: torch.Tensor) -> tuple[None, torch.Tensor | None, torch.Tensor | None]:
        a, b = ctx.saved_tensors
        grad_a = grad_b = None
        if ctx.needs_input_grad[1]:
            grad_a = matmul_operator(b, grad.t()).t() if _column_major(a) else matmul_operator(grad, b.t())
        if ctx.needs_input_grad[2]:
            grad_b = matmul_operator(grad.t(), a).t() if _column_major(b) else matmul_operator(a.t(), grad)
        return None, grad_a, grad_b


def _with_gradients(keys: Any, a: torch.Tensor, b: torch.Tensor) -> torch.Tensor:
    """The operator where PyTorch differentiates. Transforms and forward mode have PyTorch's own rules, those of `torch.mm`."""
    if _transforms() is not None or forward_ad._current_level >= 0:
        return torch.mm(a, b)
    if _grad_enabled() and (a.requires_grad or b.requires_grad):
        out: torch.Tensor = _Differentiable.apply(keys, a, b)
        return out
    return _below_autograd(keys, a, b)


def _below_autograd(keys: Any, a: torch.Tensor, b: torch.Tensor) -> torch.Tensor:
    with torch._C._AutoDispatchBelowAutograd():
        out: torch.Tensor = matmul_operator.redispatch(keys & torch._C._after_autograd_keyset, a, b)
        return out


def _column_major(matrix: torch.Tensor) -> bool:
    return bool(matrix.stride(0) == 1 and matrix.stride(1) == matrix.shape[0] and matrix.shape[1] > 1)


_REGISTRATION.impl("matmul", _matrix_product, "CompositeExplicitAutograd")
_REGISTRATION.impl("matmul", _with_gradients, "Autograd", with_keyset=True)
torch.library.register_fake("cudal2::matmul", _fake, lib=_REGISTRATION)
torch.library.register_vmap("cudal2::matmul", _batched, lib=_REGISTRATION)


def matmul(a: torch.Tensor, b: torch.Tensor) -> torch.Tensor:
    """The product of two tensors, by the rules of `torch.matmul`.

    Two matrices, and a batch of matrices times one matrix, are products that the library may run. Every other form is
    PyTorch's, and so is every product under a transform that the operator has no rule for.
    Raises: what `torch.matmul` raises.
    """
    if _plain(a, b) and a.dim() == b.dim() == 2:
        return _directly(a, b)
    if _transformed(a, b):
        return _by_torch(a, b, FallbackCause.TRANSFORM)
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
    """Whether nothing looks on: no derivatives, tracing, autocast, transforms, modes or subclasses. The operator costs more."""
    return (
        not _compiling()
        and type(a) is type(b) is torch.Tensor
        and not (_grad_enabled() and (a.requires_grad or b.requires_grad))
        and not _any_autocast()
        and a.layout is _STRIDED
        and b.layout is _STRIDED
        and not (a.is_nested or b.is_nested)
        and not (a.is_neg() or b.is_neg())  # negated when it is read: memory holds other values
        and _dispatch_modes() == 0
        and _function_modes() == 0
        and _transforms() is None
        and forward_ad._current_level < 0
        and _jit_trace() is None
    )


def _transformed(a: torch.Tensor, b: torch.Tensor) -> bool:
    """Whether something is in play that knows `torch.matmul`, and the operator not. PyTorch's compilers know the operator."""
    if _compiling() or _traced():
        return type(a) not in _TRACED_TENSORS or type(b) not in _TRACED_TENSORS
    return (
        type(a) not in _TENSORS
        or type(b) not in _TENSORS
        or _transforms() is not None
        or forward_ad._current_level >= 0
        or _jit_trace() is not None
        or _dispatch_modes() > 0
        or any(not isinstance(mode, DeviceContext) for mode in _get_current_function_mode_stack())
    )


def _traced() -> bool:
    """Whether the modes are those of `make_fx`, fake tensors or functionalization, and no others."""
    return bool(0 < _dispatch_modes() == sum(_dispatch_mode(tracer) is not None for tracer in _TRACERS))


def _by_torch(a: torch.Tensor, b: torch.Tensor, cause: FallbackCause) -> torch.Tensor:
    if not _compiling():
        service().counts.fell_back(cause)
    return torch.matmul(a, b)
