"""The kernels of `aten::mm` and `aten::addmm` for one dispatch key replaced, with the original ones as the fallback.

A Python kernel that is registered for a key shadows the original one until its registration ends. `torch.library.get_kernel`
reads the original kernel before that, so calling it does not come back here. Older versions without it call the `out` form, an
operator of its own whose kernel stays. Autograd, autocast and fake tensors act above the key and do not see the change.
"""

import warnings
from collections.abc import Callable
from functools import partial
from typing import Any

import torch

from cudal2.dispatch.causes import FallbackCause
from cudal2.torch.product_service import ProductService

OPERATORS = ("mm", "addmm")

AtenKernel = Callable[..., torch.Tensor]


class AtenOverride:
    """A registration that lasts until `stop`. Raises: ValueError for an operator that is not one of `OPERATORS`."""

    def __init__(self, service: ProductService, operators: tuple[str, ...] = OPERATORS) -> None:
        if unknown := set(operators) - set(OPERATORS):
            raise ValueError(f"{', '.join(sorted(unknown))} cannot be replaced; choose from {', '.join(OPERATORS)}")
        self.service, self.operators, key = service, operators, service.platform.dispatch_key
        kernels = {name: _KERNELS[name](service, original_kernel(name, key)) for name in operators}
        self._library: Any = torch.library.Library("aten", "IMPL")
        with warnings.catch_warnings():
            warnings.filterwarnings("ignore", message=".*[Oo]verrid")
            for name, kernel in kernels.items():
                self._library.impl(name, kernel, key)

    def stop(self) -> None:
        """The original kernels run again. A call that is under way ends as it began."""
        self._library._destroy()


def original_kernel(name: str, key: str) -> AtenKernel:
    """What runs an operator for a dispatch key now, as a function that stays the same when the key's kernel is replaced."""
    if not hasattr(torch.library, "get_kernel"):
        return _OUT_FORMS[name]
    kernel = torch.library.get_kernel(f"aten::{name}", key)
    keys = torch._C.DispatchKeySet(getattr(torch._C.DispatchKey, key))
    return partial(kernel.call_boxed, keys)


def _mm_out_form(a: torch.Tensor, b: torch.Tensor) -> torch.Tensor:
    result: torch.Tensor = torch.ops.aten.mm.out(a, b, out=a.new_empty(0))
    return result


def _addmm_out_form(bias: torch.Tensor, a: torch.Tensor, b: torch.Tensor, **scales: Any) -> torch.Tensor:
    result: torch.Tensor = torch.ops.aten.addmm.out(bias, a, b, out=a.new_empty(0), **scales)
    return result


def _mm(service: ProductService, original: AtenKernel) -> AtenKernel:
    product = service.product

    def mm(a: torch.Tensor, b: torch.Tensor) -> torch.Tensor:
        out = product(a, b)
        return original(a, b) if out is None else out

    return mm


def _addmm(service: ProductService, original: AtenKernel) -> AtenKernel:
    """No entry adds a bias today, so every call goes to the original kernel; it is counted, so that `status` tells."""
    fell_back = service.fell_back

    def addmm(bias: torch.Tensor, a: torch.Tensor, b: torch.Tensor, **scales: Any) -> torch.Tensor:
        fell_back(FallbackCause.BIAS)
        return original(bias, a, b, **scales)

    return addmm


_OUT_FORMS: dict[str, AtenKernel] = {"mm": _mm_out_form, "addmm": _addmm_out_form}
_KERNELS: dict[str, Callable[[ProductService, AtenKernel], AtenKernel]] = {"mm": _mm, "addmm": _addmm}
