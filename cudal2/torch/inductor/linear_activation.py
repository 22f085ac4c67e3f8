"""`torch.ops.cudal2.linear_activation`: a linear layer and the activation of its outputs, by one kernel of the library.

`activation_pass.py` puts it into compiled graphs. It asks the library while that is enabled. Everything else is exactly
PyTorch's two operations: what no entry serves, gradients, forward-mode derivatives.
Not covered: `torch.vmap`, which has no rule for it; the pass leaves graphs under it alone.
"""

from collections.abc import Callable
from functools import partial
from typing import Any

import torch
from torch.autograd import forward_ad
from torch.nn import functional

from cudal2.dispatch.decision import FallbackCause
from cudal2.torch.torch_session import enabled_service
from cudal2_agent.contract.records.task import Activation

APPLIED: dict[Activation, Callable[[torch.Tensor], torch.Tensor]] = {
    Activation.RELU: functional.relu,
    Activation.GELU: functional.gelu,
    Activation.GELU_TANH: partial(functional.gelu, approximate="tanh"),
    Activation.SILU: functional.silu,
}

_NAMED = {one.value: one for one in Activation}
_TENSORS = (torch.Tensor, torch.nn.Parameter)
_modes, _transforms = torch._C._len_torch_dispatch_stack, torch._C._functorch.peek_interpreter_stack  # looked up once

_REGISTRATION = torch.library.Library("cudal2", "FRAGMENT")
_REGISTRATION.define(
    "linear_activation(Tensor x, Tensor weight, Tensor? bias, str activation) -> Tensor", tags=(torch.Tag.pt2_compliant_tag,)
)
linear_activation = torch.ops.cudal2.linear_activation.default


def _named(activation: str) -> Activation:
    """Raises: ValueError for another name."""
    found = _NAMED.get(activation)
    if found is None:
        raise ValueError(f"cudal2::linear_activation knows {', '.join(_NAMED)}, not {activation}")
    return found


def _by_torch(x: torch.Tensor, weight: torch.Tensor, bias: torch.Tensor | None, activation: str) -> torch.Tensor:
    return APPLIED[_named(activation)](functional.linear(x, weight, bias))


@torch._disable_dynamo  # type: ignore[untyped-decorator]
def _computed(x: torch.Tensor, weight: torch.Tensor, bias: torch.Tensor | None, activation: str) -> torch.Tensor:
    """Shape: weight N×K, bias N, x has K as its last size and the result N. Raises: what the two operations raise."""
    out = _served(x, weight, bias, _named(activation))
    if out is not None:
        return out
    with torch.autocast(x.device.type, enabled=False):  # the fake has promised the operands' own type
        return _by_torch(x, weight, bias, activation).contiguous()


def _served(x: torch.Tensor, weight: torch.Tensor, bias: torch.Tensor | None, activation: Activation) -> torch.Tensor | None:
    """None where the library is not enabled, or does not serve it."""
    service = enabled_service("mm" if bias is None else "addmm")
    if service is None:
        return None
    if x.dim() == 2:
        return service.product(x, weight.t(), None, bias, activation)
    if not x.is_contiguous() or x.numel() == 0:
        service.counts.fell_back(FallbackCause.RANK)
        return None
    out = service.product(x.view(-1, x.shape[-1]), weight.t(), None, bias, activation)
    return None if out is None else out.view(*x.shape[:-1], weight.shape[0])


def _fake(x: torch.Tensor, weight: torch.Tensor, bias: torch.Tensor | None, activation: str) -> torch.Tensor:
    name = "cudal2::linear_activation"
    torch._check(weight.dim() == 2, lambda: f"{name} takes a matrix of weights")
    torch._check(x.shape[-1] == weight.shape[1], lambda: f"{name} cannot multiply {x.shape} by weights of {weight.shape}")
    torch._check(x.dtype == weight.dtype, lambda: f"{name} takes one type, not {x.dtype} and {weight.dtype}")
    torch._check(bias is None or bias.dtype == x.dtype, lambda: f"{name} takes a bias of type {x.dtype}")
    _named(activation)
    return x.new_empty((*x.shape[:-1], weight.shape[0]))


def _with_gradients(
    keys: Any, x: torch.Tensor, weight: torch.Tensor, bias: torch.Tensor | None, activation: str
) -> torch.Tensor:
    """PyTorch's two operations where they are differentiated or transformed, which have rules for that.

    Where nobody looks on, the operator is called directly: another turn of PyTorch's dispatcher takes as long.
    """
    grads = torch.is_grad_enabled() and (x.requires_grad or weight.requires_grad or (bias is not None and bias.requires_grad))
    if grads or _transforms() is not None or forward_ad._current_level >= 0:
        return _by_torch(x, weight, bias, activation)
    if _modes() == 0 and type(x) in _TENSORS and type(weight) in _TENSORS and (bias is None or type(bias) in _TENSORS):
        return _computed(x, weight, bias, activation)
    with torch._C._AutoDispatchBelowAutograd():
        out: torch.Tensor = linear_activation.redispatch(keys & torch._C._after_autograd_keyset, x, weight, bias, activation)
        return out


_REGISTRATION.impl("linear_activation", _computed, "CompositeExplicitAutograd")
_REGISTRATION.impl("linear_activation", _with_gradients, "Autograd", with_keyset=True)
torch.library.register_fake("cudal2::linear_activation", _fake, lib=_REGISTRATION)
