"""The kernels of `aten::mm` and `aten::addmm` for one dispatch key replaced, with the original ones as the fallback.

Their `out` forms are replaced with them, because code of Inductor, the compiler of `torch.compile`, calls these.

A kernel that is registered for a key shadows the original one until its registration ends. Where the C++ kernels were compiled
for this PyTorch they are registered (`compiled_kernels.py`); else kernels in Python, which cost more per call. They reach the
original kernel by `torch.library.get_kernel`, which reads it before the registration, so calling it does not come back here.
Older versions without it call the `out` form, an operator of its own whose kernel then stays. Autograd, autocast and fake
tensors act above the key and do not see the change.

Another library may have replaced the same operator, as batch-invariant modes do. The one that came last runs first. Over the
kernel of another only a kernel in Python is registered, because the one in C++ reaches PyTorch's own kernel alone.

PyTorch's table of kernels is not guarded: a registration that ends while another thread calls the kernel leaves that thread
with freed memory. So a kernel is registered once and stays until the process ends; whether it asks a service is a flag.
"""

import inspect
import threading
import warnings
from collections.abc import Callable
from functools import partial
from itertools import chain
from typing import Any, Protocol

import torch

from cudal2.dispatch.decision import FallbackCause
from cudal2.torch.compiled_kernels import CompiledKernels
from cudal2.torch.kernel_registrations import others, shadowed
from cudal2.torch.product_service import ProductService

OPERATORS = ("mm", "addmm")

AtenKernel = Callable[..., torch.Tensor]


class ReplacedKernel(Protocol):
    """A kernel that is registered. `language`: in which it is written."""

    language: str

    def serve(self, service: ProductService | None) -> None:
        """Ask a service first from now on; None only calls the original kernel."""

    def unregister(self) -> None:
        """End the registration. No other thread may be calling the operator."""


class PythonKernel:
    """A replaced kernel in Python. `service`: what it asks first."""

    language = "Python"

    def __init__(self, name: str, key: str) -> None:
        self.service: ProductService | None = None
        kernels = {name: _KERNELS[name](self, original_kernel(name, key))}
        if hasattr(torch.library, "get_kernel"):
            kernels[f"{name}.out"] = _KERNELS[name](self, _current_kernel(f"{name}.out", key))
        self._registration: Any = torch.library.Library("aten", "IMPL")
        known: set[str] = getattr(torch.library, "_impls", set())
        before = set(known)
        with warnings.catch_warnings():
            warnings.filterwarnings("ignore", message=".*[Oo]verrid")
            for form, kernel in kernels.items():
                self._registration.impl(form, kernel, key, **_MAY_OVERRIDE)
        known &= before  # what is noted there refuses the kernels of libraries that come later

    def serve(self, service: ProductService | None) -> None:
        self.service = service

    def unregister(self) -> None:
        self.service = None
        self._registration._destroy()


class CompiledKernel:
    """A replaced kernel in C++. Raises: LibraryError where PyTorch refuses it."""

    language = "C++"

    def __init__(self, name: str, kernels: CompiledKernels) -> None:
        self._name, self._kernels = name, kernels
        kernels.register(name)

    def serve(self, service: ProductService | None) -> None:
        self._kernels.serve(self._name, service)

    def unregister(self) -> None:
        self.serve(None)
        self._kernels.unregister(self._name)


_REPLACED: dict[tuple[str, str], ReplacedKernel] = {}
_SHADOWED: dict[tuple[str, str], list[ReplacedKernel]] = {}  # registered before, and below one of another library or of ours
_LOCK = threading.Lock()


class AtenOverride:
    """Operators that ask a service until `stop`. `compiled`: their kernels in C++; None has kernels in Python registered.

    Raises: ValueError for an operator that is not one of `OPERATORS`; LibraryError where PyTorch refuses the kernels in C++.
    """

    def __init__(
        self, service: ProductService, operators: tuple[str, ...] = OPERATORS, compiled: CompiledKernels | None = None
    ) -> None:
        if unknown := set(operators) - set(OPERATORS):
            raise ValueError(f"{', '.join(sorted(unknown))} cannot be replaced; choose from {', '.join(OPERATORS)}")
        self.service, self.operators = service, operators
        self._kernels = [_replaced(name, service.platform.dispatch_key, compiled) for name in operators]
        for kernel in self._kernels:
            kernel.serve(service)

    @property
    def languages(self) -> tuple[str, ...]:
        """In which the kernels are written, each once."""
        return tuple(dict.fromkeys(kernel.language for kernel in self._kernels))

    def stop(self, successor: "AtenOverride | None" = None) -> None:
        """The original kernels run again, but for those that a successor uses. A call that is under way ends as it began."""
        for kernel in self._kernels:
            if successor is None or kernel not in successor._kernels:
                kernel.serve(None)


def unregister() -> None:
    """Leave no trace of any replacement. Only for a process in which no other thread multiplies, such as a benchmark's."""
    with _LOCK:
        for kernel in chain(_REPLACED.values(), *_SHADOWED.values()):
            kernel.unregister()
        _REPLACED.clear()
        _SHADOWED.clear()


def _replaced(name: str, key: str, compiled: CompiledKernels | None) -> ReplacedKernel:
    """A kernel in C++ is registered over one in Python, which then runs no more, and one in Python over that of another."""
    with _LOCK:
        found, below = _REPLACED.get((name, key)), _SHADOWED.setdefault((name, key), [])
        once = not any(isinstance(kernel, CompiledKernel) for kernel in below)  # the one in C++ is registered once
        in_cpp = compiled if once and not others(name, key) and not others(f"{name}.out", key) else None
        if found is not None and not shadowed(name, key) and not (in_cpp and isinstance(found, PythonKernel)):
            return found
        _REPLACED[name, key] = kernel = CompiledKernel(name, in_cpp) if in_cpp else PythonKernel(name, key)
        below += [found] if found is not None else []
        return kernel


def original_kernel(name: str, key: str) -> AtenKernel:
    """What runs an operator for a dispatch key now, as a function that stays the same when the key's kernel is replaced.

    A kernel of another library runs until its registration ends, and PyTorch's own from then on.
    """
    if not hasattr(torch.library, "get_kernel"):
        return _OUT_FORMS[name]
    kernel = _current_kernel(name, key)
    return partial(while_registered, kernel, _OUT_FORMS[name]) if others(name, key) else kernel


def _current_kernel(name: str, key: str) -> AtenKernel:
    found = torch.library.get_kernel(f"aten::{name}", key)
    return partial(found.call_boxed, torch._C.DispatchKeySet(getattr(torch._C.DispatchKey, key)))


def while_registered(kernel: AtenKernel, afterwards: AtenKernel, *arguments: Any, **options: Any) -> torch.Tensor:
    """A kernel of another library, and once its registration has ended what runs `afterwards`."""
    try:
        return kernel(*arguments, **options)
    except RuntimeError as exc:
        if "SafeKernelFunction has been invalidated" not in str(exc):
            raise
    return afterwards(*arguments, **options)


def _mm_out_form(a: torch.Tensor, b: torch.Tensor) -> torch.Tensor:
    result: torch.Tensor = torch.ops.aten.mm.out(a, b, out=a.new_empty(0))
    return result


def _addmm_out_form(bias: torch.Tensor, a: torch.Tensor, b: torch.Tensor, **scales: Any) -> torch.Tensor:
    result: torch.Tensor = torch.ops.aten.addmm.out(bias, a, b, out=a.new_empty(0), **scales)
    return result


def _mm(replaced: PythonKernel, original: AtenKernel) -> AtenKernel:
    """Either form; `into` holds `out` where that is given."""

    def mm(a: torch.Tensor, b: torch.Tensor, **into: torch.Tensor) -> torch.Tensor:
        service = replaced.service
        found = None if service is None else service.product(a, b, **into)
        return original(a, b, **into) if found is None else found

    return mm


def _addmm(replaced: PythonKernel, original: AtenKernel) -> AtenKernel:
    """Either form; `more` holds `beta`, `alpha` and `out` where they are given."""

    def addmm(bias: torch.Tensor, a: torch.Tensor, b: torch.Tensor, **more: Any) -> torch.Tensor:
        service = replaced.service
        if service is not None:
            if bias.dim() == 1 and all(more.get(scale, 1) == 1 for scale in ("beta", "alpha")):
                found = service.product(a, b, more.get("out"), bias)
                if found is not None:
                    return found
            else:
                service.counts.fell_back(FallbackCause.BIAS)
        return original(bias, a, b, **more)

    return addmm


_MAY_OVERRIDE = {"allow_override": True} if "allow_override" in inspect.signature(torch.library.Library.impl).parameters else {}
_OUT_FORMS: dict[str, AtenKernel] = {"mm": _mm_out_form, "addmm": _addmm_out_form}
_KERNELS: dict[str, Callable[[PythonKernel, AtenKernel], AtenKernel]] = {"mm": _mm, "addmm": _addmm}
