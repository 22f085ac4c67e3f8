"""The matrix products of aten, replaced for one dispatch key by those of the batch-invariant mode.

Kernels are registered once, stay until the process ends, and act while `serve` has given them products; else they call what was
there before (`aten_override.py` says why). They are in Python. Where another kernel was registered over them since, they are
registered again.

`addmm` and `baddbmm` add their bias to the product in its own type: the sum over K is rounded once before, and once after.
"""

import inspect
import threading
import warnings
from collections.abc import Callable
from functools import partial
from typing import Any

import torch

from cudal2.torch.aten_override import while_registered
from cudal2.torch.invariant_products import InvariantProducts
from cudal2.torch.kernel_registrations import others, registered
from cudal2_agent.contract.errors import UsageError

SERVED = ("mm", "addmm", "bmm", "baddbmm", "mv")
# Their results have another type than their operands.
REFUSED = tuple(f"{name}.{form}" for name in ("mm", "addmm", "bmm", "baddbmm") for form in ("dtype", "dtype_out"))

Product = Callable[..., torch.Tensor | None]  # None where the kernel that was there before runs
_MAY_OVERRIDE = {"allow_override": True} if "allow_override" in inspect.signature(torch.library.Library.impl).parameters else {}


class InvariantOperators:
    """The replaced kernels of a dispatch key. `products`: what they ask; None has them call what was there before.

    Raises: UsageError for a PyTorch that cannot call a kernel that is replaced.
    """

    def __init__(self, key: str) -> None:
        if not hasattr(torch.library, "get_kernel"):
            raise UsageError(
                f"the batch-invariant mode needs torch.library.get_kernel, which PyTorch {torch.__version__} lacks"
            )
        self.key = key
        self.products: InvariantProducts | None = None
        self._registrations: list[Any] = []
        self._lock = threading.Lock()

    def serve(self, products: InvariantProducts | None) -> None:
        """Ask these products from now on."""
        with self._lock:
            if products is not None and self.shadowed():
                self._register()
            self.products = products

    def shadowed(self) -> list[str]:
        """Operators of which another kernel runs, or none of these was registered yet."""
        return [name for name in SERVED if not (registered(name, self.key) or [""])[0].startswith(__file__)]

    def unregister(self) -> None:
        """End the registrations. No other thread may be calling the operators."""
        self.products = None
        for registration in self._registrations:
            registration._destroy()
        self._registrations.clear()

    def _register(self) -> None:
        known: set[str] = getattr(torch.library, "_impls", set())
        before = set(known)
        registration = torch.library.Library("aten", "IMPL")
        with warnings.catch_warnings():
            warnings.filterwarnings("ignore", message=".*[Oo]verrid")
            for name, product in _PRODUCTS.items():
                if (original := _original(name, self.key)) is not None:
                    registration.impl(name, self._kernel(product, original), self.key, **_MAY_OVERRIDE)
        known &= before  # what is noted there refuses the kernels of libraries that come later
        self._registrations.append(registration)

    def _kernel(self, product: Product, original: Callable[..., Any]) -> Callable[..., Any]:
        def kernel(*arguments: Any, **options: Any) -> Any:
            products = self.products
            found = None if products is None else product(products, *arguments, **options)
            return original(*arguments, **options) if found is None else found

        return kernel


def _original(name: str, key: str) -> Callable[..., Any] | None:
    """What runs an operator now; None where this PyTorch or its key has no such operator."""
    packet, _, form = name.partition(".")
    overloads = getattr(torch.ops.aten, packet).overloads()
    if (form or "default") not in overloads or not torch._C._dispatch_has_computed_kernel_for_dispatch_key(
        f"aten::{name}", key
    ):
        return None
    found = torch.library.get_kernel(f"aten::{name}", key)
    kernel = partial(found.call_boxed, torch._C.DispatchKeySet(getattr(torch._C.DispatchKey, key)))
    return kernel if form or not others(name, key) else partial(while_registered, kernel, partial(_by_out_form, packet))


def _by_out_form(packet: str, *arguments: Any, **options: Any) -> torch.Tensor:
    """An operator by its `out` form, whose kernel is PyTorch's."""
    found: torch.Tensor = getattr(torch.ops.aten, packet).out(*arguments, **options, out=arguments[-1].new_empty(0))
    return found


# ---- the operators, by what they are made of -----------------------------------------------------------------------------


def _mm(products: InvariantProducts, a: torch.Tensor, b: torch.Tensor) -> torch.Tensor | None:
    return products.product(a, b)


def _mm_out(products: InvariantProducts, a: torch.Tensor, b: torch.Tensor, *, out: torch.Tensor) -> torch.Tensor | None:
    if not _alike(out, a) or a.dim() != 2 or b.dim() != 2:
        return None
    if out.shape == (a.shape[0], b.shape[1]):
        return products.product(a, b, out)
    return _written(out, products.product(a, b))


def _bmm(products: InvariantProducts, a: torch.Tensor, b: torch.Tensor) -> torch.Tensor | None:
    """One launch for each pair of matrices."""
    if a.dim() != 3 or b.dim() != 3 or a.shape[0] != b.shape[0] or a.shape[2] != b.shape[1] or 0 in (*a.shape, *b.shape):
        return None
    out = a.new_empty(a.shape[0], a.shape[1], b.shape[2])
    parts = zip(a.unbind(), b.unbind(), out.unbind(), strict=True)
    return None if any(products.product(*part) is None for part in parts) else out


def _bmm_out(products: InvariantProducts, a: torch.Tensor, b: torch.Tensor, *, out: torch.Tensor) -> torch.Tensor | None:
    return _written(out, _bmm(products, a, b)) if _alike(out, a) else None


def _mv(products: InvariantProducts, a: torch.Tensor, b: torch.Tensor) -> torch.Tensor | None:
    found = products.product(a, b.unsqueeze(1)) if a.dim() == 2 and b.dim() == 1 else None
    return None if found is None else found.squeeze(1)


def _biased(product: Product) -> Product:
    """beta · bias + alpha · product, in the product's own type."""

    def biased(
        products: InvariantProducts, bias: torch.Tensor, a: torch.Tensor, b: torch.Tensor, *, beta: Any = 1, alpha: Any = 1
    ) -> torch.Tensor | None:
        if not _alike(bias, a):
            return None
        found = product(products, a, b)
        if found is None:
            return None
        if alpha != 1:
            scaled = alpha * found.float()
            return (scaled if beta == 0 else scaled + beta * bias.float()).to(a.dtype)
        return found if beta == 0 else found.add_(bias, alpha=beta)

    return biased


def _biased_out(product: Product) -> Product:
    biased = _biased(product)

    def into(products: InvariantProducts, *operands: torch.Tensor, out: torch.Tensor, **scales: Any) -> torch.Tensor | None:
        return _written(out, biased(products, *operands, **scales)) if _alike(out, operands[1]) else None

    return into


def _biased_in_place(product: Product) -> Product:
    biased = _biased(product)

    def in_place(
        products: InvariantProducts, bias: torch.Tensor, *operands: torch.Tensor, **scales: Any
    ) -> torch.Tensor | None:
        found = biased(products, bias, *operands, **scales)
        return None if found is None or found.shape != bias.shape else bias.copy_(found)

    return in_place


def _refused(name: str) -> Product:
    def refused(products: InvariantProducts, *_: Any, **__: Any) -> None:
        products.other(f"aten::{name}, whose result has another type", "ask for the type of the operands")

    return refused


def _alike(one: torch.Tensor, other: torch.Tensor) -> bool:
    """Whether PyTorch takes them together; it raises its own error where not."""
    return one.dtype is other.dtype and one.device == other.device


def _written(out: torch.Tensor, result: torch.Tensor | None) -> torch.Tensor | None:
    if result is None:
        return None
    if out.shape != result.shape:
        out.resize_(result.shape)
    return out.copy_(result)


_PRODUCTS: dict[str, Product] = {
    "mm": _mm,
    "mm.out": _mm_out,
    "bmm": _bmm,
    "bmm.out": _bmm_out,
    "mv": _mv,
    "addmm": _biased(_mm),
    "addmm.out": _biased_out(_mm),
    "addmm_": _biased_in_place(_mm),
    "baddbmm": _biased(_bmm),
    "baddbmm.out": _biased_out(_bmm),
    "baddbmm_": _biased_in_place(_bmm),
    **{name: _refused(name) for name in REFUSED},
}
