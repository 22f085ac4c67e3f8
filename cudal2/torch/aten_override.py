"""The kernels of `aten::mm` and `aten::addmm` for one dispatch key replaced, with the original ones as the fallback.

A Python kernel that is registered for a key shadows the original one until its registration ends. `torch.library.get_kernel`
reads the original kernel before that, so calling it does not come back here. Older versions without it call the `out` form, an
operator of its own whose kernel stays. Autograd, autocast and fake tensors act above the key and do not see the change.

PyTorch's table of kernels is not guarded: a registration that ends while another thread calls the kernel leaves that thread
with freed memory. So a kernel is registered once and stays until the process ends; whether it asks a service is a flag.
"""

import threading
import warnings
from collections.abc import Callable
from functools import partial
from typing import Any

import torch

from cudal2.dispatch.causes import FallbackCause
from cudal2.torch.product_service import ProductService

OPERATORS = ("mm", "addmm")

AtenKernel = Callable[..., torch.Tensor]


class ReplacedKernel:
    """A kernel that is registered. `service`: what it asks first; None while it only calls the original kernel."""

    def __init__(self, name: str, key: str) -> None:
        self.service: ProductService | None = None
        kernel = _KERNELS[name](self, original_kernel(name, key))
        self.registration: Any = torch.library.Library("aten", "IMPL")
        with warnings.catch_warnings():
            warnings.filterwarnings("ignore", message=".*[Oo]verrid")
            self.registration.impl(name, kernel, key)


_REPLACED: dict[tuple[str, str], ReplacedKernel] = {}
_LOCK = threading.Lock()


class AtenOverride:
    """Operators that ask a service until `stop`. Raises: ValueError for an operator that is not one of `OPERATORS`."""

    def __init__(self, service: ProductService, operators: tuple[str, ...] = OPERATORS) -> None:
        if unknown := set(operators) - set(OPERATORS):
            raise ValueError(f"{', '.join(sorted(unknown))} cannot be replaced; choose from {', '.join(OPERATORS)}")
        self.service, self.operators = service, operators
        self._kernels = [_replaced(name, service.platform.dispatch_key) for name in operators]
        for kernel in self._kernels:
            kernel.service = service

    def stop(self) -> None:
        """The original kernels run again. A call that is under way ends as it began."""
        for kernel in self._kernels:
            kernel.service = None


def unregister() -> None:
    """Leave no trace of any replacement. Only for a process in which no other thread multiplies, such as a benchmark's."""
    with _LOCK:
        for kernel in _REPLACED.values():
            kernel.service = None
            kernel.registration._destroy()
        _REPLACED.clear()


def _replaced(name: str, key: str) -> ReplacedKernel:
    with _LOCK:
        found = _REPLACED.get((name, key))
        if found is None:
            found = _REPLACED[name, key] = ReplacedKernel(name, key)
        return found


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


def _mm(replaced: ReplacedKernel, original: AtenKernel) -> AtenKernel:
    def mm(a: torch.Tensor, b: torch.Tensor) -> torch.Tensor:
        service = replaced.service
        out = None if service is None else service.product(a, b)
        return original(a, b) if out is None else out

    return mm


def _addmm(replaced: ReplacedKernel, original: AtenKernel) -> AtenKernel:
    """No entry adds a bias today, so every call goes to the original kernel; it is counted, so that `status` tells."""

    def addmm(bias: torch.Tensor, a: torch.Tensor, b: torch.Tensor, **scales: Any) -> torch.Tensor:
        service = replaced.service
        if service is not None:
            service.fell_back(FallbackCause.BIAS)
        return original(bias, a, b, **scales)

    return addmm


_OUT_FORMS: dict[str, AtenKernel] = {"mm": _mm_out_form, "addmm": _addmm_out_form}
_KERNELS: dict[str, Callable[[ReplacedKernel, AtenKernel], AtenKernel]] = {"mm": _mm, "addmm": _addmm}
