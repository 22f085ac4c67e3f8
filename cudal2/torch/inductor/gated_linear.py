"""`torch.ops.cudal2.gated_linear`: the gated first half of a feed-forward layer, activation(x·gate) · (x·up), by one kernel.

`layer_pass.py` puts it into compiled graphs. See `layer_operator.py` for what it does elsewhere.
"""

import torch
from torch.nn import functional

from cudal2.torch.inductor.layer_operator import named, register, served
from cudal2.torch.inductor.linear_activation import APPLIED

_NAME = "gated_linear"


def joined_weight(gate: torch.Tensor, up: torch.Tensor) -> tuple[torch.Tensor, bool] | None:
    """The 2N×K matrix whose halves two N×K matrices are, and whether the gate is its first one; None where they are none.

    It is a view without gradients.
    """
    if gate.untyped_storage()._cdata != up.untyped_storage()._cdata or gate.dtype != up.dtype or gate.shape != up.shape:
        return None
    apart = up.storage_offset() - gate.storage_offset()
    if not (gate.is_contiguous() and up.is_contiguous()) or abs(apart) != gate.numel():
        return None
    rows, columns = gate.shape
    first = gate if apart > 0 else up
    return first.detach().as_strided((2 * rows, columns), (columns, 1)), apart > 0


def _by_torch(x: torch.Tensor, gate: torch.Tensor, up: torch.Tensor, activation: str) -> torch.Tensor:
    """Two products, as PyTorch knows gradients of."""
    applied = APPLIED[named(activation, _NAME)]
    _check(x, gate, up)
    return applied(functional.linear(x, gate)) * functional.linear(x, up)


def _without_gradients(x: torch.Tensor, gate: torch.Tensor, up: torch.Tensor, activation: str) -> torch.Tensor:
    """One product where the weights lie one behind the other, as a program with a joined weight has it."""
    found = joined_weight(gate, up)
    if found is None:
        return _by_torch(x, gate, up, activation)
    weight, gate_first = found
    halves = functional.linear(x, weight).chunk(2, -1)
    gate_sums, up_sums = halves if gate_first else reversed(halves)
    return APPLIED[named(activation, _NAME)](gate_sums) * up_sums


def _by_library(x: torch.Tensor, gate: torch.Tensor, up: torch.Tensor, activation: str) -> torch.Tensor | None:
    return served(x, gate, None, named(activation, _NAME), up)


def _check(x: torch.Tensor, gate: torch.Tensor, up: torch.Tensor) -> None:
    """PyTorch would stretch a matrix of one row."""
    name = f"cudal2::{_NAME}"
    torch._check(gate.dim() == up.dim() == 2, lambda: f"{name} takes two matrices of weights")
    torch._check(gate.shape == up.shape, lambda: f"{name} takes weights of one shape, not {gate.shape} and {up.shape}")
    torch._check(x.shape[-1] == gate.shape[1], lambda: f"{name} cannot multiply {x.shape} by weights of {gate.shape}")
    torch._check(
        x.dtype == gate.dtype == up.dtype, lambda: f"{name} takes one type, not {x.dtype}, {gate.dtype} and {up.dtype}"
    )


def _fake(x: torch.Tensor, gate: torch.Tensor, up: torch.Tensor, activation: str) -> torch.Tensor:
    _check(x, gate, up)
    named(activation, _NAME)
    return x.new_empty((*x.shape[:-1], gate.shape[0]))


gated_linear = register(
    f"{_NAME}(Tensor x, Tensor gate, Tensor up, str activation) -> Tensor",
    by_library=_by_library,
    without_gradients=_without_gradients,
    by_torch=_by_torch,
    fake=_fake,
)
