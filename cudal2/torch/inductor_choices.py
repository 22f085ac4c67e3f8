"""The library as a choice of Inductor, PyTorch's compiler, for products under `torch.compile`.

Inductor times its choices for each product when it compiles, and keeps the fastest. It offers two borders for that:
- `torch._inductor.config.external_matmul` names functions `f(a, b, out)` that compete for `aten.mm` (PyTorch 2.6 and later).
- A lowering says how an operator is compiled. `torch.ops.cudal2.matmul` is lowered as `aten.mm`, with the same choices; without
  that Inductor calls the operator through the dispatcher, and times nothing.

Both are private, so what a version lacks is left out, and `enable_inductor` says so. A kernel that is not built yet is timed as
PyTorch's own and loses: build the library before a model is compiled.
"""

import threading
from types import ModuleType
from typing import Any

import torch

from cudal2.torch import torch_session

_LOCK = threading.Lock()


def cudal2_mm_out(a: torch.Tensor, b: torch.Tensor, out: torch.Tensor) -> None:
    """The product into `out`, by the library or by PyTorch. Compiled code calls it by this name."""
    if not torch_session.service().product_into(a, b, out):
        torch.mm(a, b, out=out)


def enable_inductor() -> str:
    """Offer the library to Inductor from now on. Returns which borders this PyTorch lacks; empty where it has both."""
    with _LOCK:
        lacking = (_offer(_inductor("config")), _lower(_inductor("lowering")))
    return "; ".join(text for text in lacking if text)


def disable_inductor() -> None:
    """Offer the library no longer. Code that was compiled before keeps its choices."""
    with _LOCK:
        config, lowering = _inductor("config"), _inductor("lowering")
        choices = getattr(config, "external_matmul", None)
        if choices and cudal2_mm_out in choices:
            choices.remove(cudal2_mm_out)
        getattr(lowering, "lowerings", {}).pop(torch.ops.cudal2.matmul.default, None)


def _inductor(part: str) -> ModuleType | None:
    """A module of Inductor; None in a PyTorch without it."""
    try:
        if part == "config":
            import torch._inductor.config as found
        else:
            import torch._inductor.lowering as found
    except ImportError:
        return None
    module: ModuleType = found
    return module


def _offer(config: Any) -> str:
    choices = getattr(config, "external_matmul", None)
    if not isinstance(choices, list):
        return f"PyTorch {torch.__version__} has no external_matmul, so compiled products of aten.mm are Inductor's own"
    if cudal2_mm_out not in choices:
        choices.append(cudal2_mm_out)
    return ""


def _lower(lowering: Any) -> str:
    register = getattr(lowering, "register_lowering", None)
    lowerings = getattr(lowering, "lowerings", None)
    if register is None or not isinstance(lowerings, dict):
        return f"PyTorch {torch.__version__} has no lowerings, so compiled code calls torch.ops.cudal2.matmul as it is"
    operator = torch.ops.cudal2.matmul.default
    if operator not in lowerings:

        def lower(a: Any, b: Any) -> Any:
            return lowerings[torch.ops.aten.mm.default](a, b)

        register(operator, type_promotion_kind=None)(lower)
    return ""
