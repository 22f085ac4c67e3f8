"""An operator that stands for several of PyTorch's operations, and asks the library while that is enabled.

Everything else is exactly PyTorch's operations: what no entry serves, gradients, forward-mode derivatives.
Not covered: `torch.vmap`, which has no rule for it; the pass leaves graphs under it alone.
"""

from collections.abc import Callable
from typing import Any

import torch
from torch.autograd import forward_ad

from cudal2.dispatch.decision import FallbackCause
from cudal2.torch.torch_session import enabled_service
from cudal2_agent.contract.records.task import Activation

_NAMED = {one.value: one for one in Activation}
_PLAIN = frozenset((torch.Tensor, torch.nn.Parameter, str, type(None)))  # whose types change nothing
_modes, _transforms = torch._C._len_torch_dispatch_stack, torch._C._functorch.peek_interpreter_stack  # looked up once
_REGISTRATION = torch.library.Library("cudal2", "FRAGMENT")

Operation = Callable[..., torch.Tensor]  # takes what the operator takes, in its order


def named(activation: str, operator: str) -> Activation:
    """Raises: ValueError for another name."""
    found = _NAMED.get(activation)
    if found is None:
        raise ValueError(f"cudal2::{operator} knows {', '.join(_NAMED)}, not {activation}")
    return found


def served(
    x: torch.Tensor,
    weight: torch.Tensor,
    bias: torch.Tensor | None,
    activation: Activation,
    up: torch.Tensor | None = None,
) -> torch.Tensor | None:
    """A layer by one kernel of the library. None where that is not enabled, or does not serve it.

    Shape: weight and `up` N×K, bias N, x has K as its last size and the result N.
    """
    service = enabled_service("mm" if bias is None else "addmm")
    if service is None:
        return None
    second = None if up is None else up.t()
    if x.dim() == 2:
        return service.product(x, weight.t(), None, bias, activation, second)
    if not x.is_contiguous() or x.numel() == 0:
        service.counts.fell_back(FallbackCause.RANK)
        return None
    out = service.product(x.view(-1, x.shape[-1]), weight.t(), None, bias, activation, second)
    return None if out is None else out.view(*x.shape[:-1], weight.shape[0])


def register(
    schema: str,
    *,
    by_library: Callable[..., torch.Tensor | None],
    without_gradients: Operation,
    by_torch: Operation,
    fake: Operation,
) -> Any:
    """Define an operator of `torch.ops.cudal2` whose first argument is a tensor, and return it.

    `by_torch`: PyTorch's operations, which it differentiates and transforms. `without_gradients`: the same where nobody does.
    """
    name = schema.partition("(")[0]
    _REGISTRATION.define(schema, tags=(torch.Tag.pt2_compliant_tag,))
    operator = getattr(torch.ops.cudal2, name).default

    @torch._disable_dynamo  # type: ignore[untyped-decorator]
    def computed(*given: Any) -> torch.Tensor:
        """Raises: what the operations raise."""
        out = by_library(*given)
        if out is not None:
            return out
        with torch.autocast(given[0].device.type, enabled=False):  # the fake has promised the operands' own type
            return without_gradients(*given).contiguous()

    def with_gradients(keys: Any, *given: Any) -> torch.Tensor:
        """PyTorch's operations where they are differentiated or transformed, which have rules for that.

        Where nobody looks on, the operator is called directly: another turn of PyTorch's dispatcher takes as long.
        """
        grads = torch.is_grad_enabled() and any(isinstance(one, torch.Tensor) and one.requires_grad for one in given)
        if grads or _transforms() is not None or forward_ad._current_level >= 0:
            return by_torch(*given)
        if _modes() == 0 and _PLAIN.issuperset(map(type, given)):
            out: torch.Tensor = computed(*given)
            return out
        with torch._C._AutoDispatchBelowAutograd():
            below: torch.Tensor = operator.redispatch(keys & torch._C._after_autograd_keyset, *given)
            return below

    _REGISTRATION.impl(name, computed, "CompositeExplicitAutograd")
    _REGISTRATION.impl(name, with_gradients, "Autograd", with_keyset=True)
    torch.library.register_fake(f"cudal2::{name}", fake, lib=_REGISTRATION)
    return operator
