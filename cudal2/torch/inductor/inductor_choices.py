"""The library as a choice of Inductor, PyTorch's compiler, for matrix products under `torch.compile`.

Inductor times its choices for each matrix product when it compiles, and keeps the fastest. It offers three borders for that:
- `torch._inductor.config.external_matmul` names functions `f(a, b, out)` that compete for `aten.mm`. There is none for
  `aten.addmm`, whose `out` form compiled code calls: `enable` serves that.
- A lowering says how an operator is compiled. `torch.ops.cudal2.matmul` is lowered as `aten.mm`, with the same choices; without
  that Inductor calls the operator through the dispatcher, and times nothing.
- `register_custom_op_autotuning` lets `aten.mm` compete with the operator, which is chosen only by a minimum speedup. It
  stands in for the first two.

All are private, so what a version lacks is left out, and `enable_inductor` returns it. A kernel that is not built yet is timed
as PyTorch's own and loses. Inductor's cache keeps choices between processes. So build the library before a model is compiled.
"""

import inspect
import threading
from types import ModuleType
from typing import Any

import torch

from cudal2.torch import torch_session

_LOCK = threading.Lock()
_COMPETING: list[float] = []  # the minimum speedup, while `aten.mm` competes with the operator


def cudal2_mm_out(a: torch.Tensor, b: torch.Tensor, out: torch.Tensor) -> None:
    """The product into `out`, by the library or by PyTorch. Compiled code calls it by this name."""
    if torch_session.product(a, b, out) is None:
        torch.mm(a, b, out=out)


def enable_inductor(minimum_speedup: float | None = None) -> str:
    """Offer the library to Inductor from now on. Returns which borders this PyTorch lacks, in words; empty for none.

    `minimum_speedup`: over PyTorch's own matrix product, for the library to be chosen; None takes whatever is fastest.
    Raises: ValueError for one below 1.
    """
    if minimum_speedup is not None and minimum_speedup < 1:
        raise ValueError(f"a minimum speedup is at least 1, not {minimum_speedup}")
    disable_inductor()
    with _LOCK:
        if minimum_speedup is not None:
            return _compete(_inductor("custom_op"), minimum_speedup)
        lacking = (_offer(_inductor("config"), _inductor("mm")), _lower(_inductor("lowering")))
    return "; ".join(text for text in lacking if text)


def disable_inductor() -> None:
    """Offer the library no longer. Code that was compiled before keeps its choices."""
    with _LOCK:
        config, lowering = _inductor("config"), _inductor("lowering")
        choices = getattr(config, "external_matmul", None)
        if choices and cudal2_mm_out in choices:
            choices.remove(cudal2_mm_out)
        getattr(lowering, "lowerings", {}).pop(torch.ops.cudal2.matmul.default, None)
        if _COMPETING:
            _COMPETING.clear()
            getattr(lowering, "user_lowerings", {}).pop(torch.ops.aten.mm.default, None)


def _inductor(part: str) -> ModuleType | None:
    """A module of Inductor; None in a PyTorch without it."""
    try:
        if part == "config":
            import torch._inductor.config as found
        elif part == "lowering":
            import torch._inductor.lowering as found
        elif part == "mm":
            import torch._inductor.kernel.mm as found
        else:
            import torch._inductor.kernel.custom_op as found
    except ImportError:
        return None
    module: ModuleType = found
    return module


def _offer(config: Any, products: Any) -> str:
    """The function is registered now: code from Inductor's cache calls it in a process that has compiled nothing."""
    choices = getattr(config, "external_matmul", None)
    register = getattr(products, "lazy_register_extern_choice", None)
    if not isinstance(choices, list) or register is None:
        return f"PyTorch {torch.__version__} has no external_matmul, so compiled matrix products of aten.mm are Inductor's own"
    register(cudal2_mm_out)
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


def _compete(custom_op: Any, minimum_speedup: float) -> str:
    register = getattr(custom_op, "register_custom_op_autotuning", None)
    parameters = inspect.signature(register).parameters if register is not None else {}
    if register is None or "min_speedup_threshold" not in parameters:
        return f"PyTorch {torch.__version__} has no autotuning of operators by a minimum speedup, so nothing is offered"
    ours = custom_op.CustomOpConfig(_by_operator)
    register(torch.ops.aten.mm.default, configs=[ours], name="cudal2_mm", min_speedup_threshold=minimum_speedup)
    _COMPETING.append(minimum_speedup)
    return ""


def _by_operator(self: torch.Tensor, mat2: torch.Tensor) -> torch.Tensor:
    """`aten.mm` by the operator, with the names of its parameters."""
    out: torch.Tensor = torch.ops.cudal2.matmul.default(self, mat2)
    return out
