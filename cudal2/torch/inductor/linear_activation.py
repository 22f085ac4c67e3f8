"""`torch.ops.cudal2.linear_activation`: a linear layer and the activation of its outputs, by one kernel of the library.

`layer_pass.py` puts it into compiled graphs. See `layer_operator.py` for what it does elsewhere.
"""

from collections.abc import Callable
from functools import partial

import torch
from torch.nn import functional

from cudal2.torch.inductor.layer_operator import named, register, served
from cudal2_agent.contract.records.task import Activation

APPLIED: dict[Activation, Callable[[torch.Tensor], torch.Tensor]] = {
    Activation.RELU: functional.relu,
    Activation.GELU: functional.gelu,
    Activation.GELU_TANH: partial(functional.gelu, approximate="tanh"),
    Activation.SILU: functional.silu,
}
_NAME = "linear_activation"


def _by_torch(x: torch.Tensor, weight: torch.Tensor, bias: torch.Tensor | None, activation: str) -> torch.Tensor:
    return APPLIED[named(activation, _NAME)](functional.linear(x, weight, bias))


def _by_library(x: torch.Tensor, weight: torch.Tensor, bias: torch.Tensor | None, activation: str) -> torch.Tensor | None:
    return served(x, weight, bias, named(activation, _NAME))


def _fake(x: torch.Tensor, weight: torch.Tensor, bias: torch.Tensor | None, activation: str) -> torch.Tensor:
    name = f"cudal2::{_NAME}"
    torch._check(weight.dim() == 2, lambda: f"{name} takes a matrix of weights")
    torch._check(x.shape[-1] == weight.shape[1], lambda: f"{name} cannot multiply {x.shape} by weights of {weight.shape}")
    torch._check(x.dtype == weight.dtype, lambda: f"{name} takes one type, not {x.dtype} and {weight.dtype}")
    torch._check(bias is None or bias.dtype == x.dtype, lambda: f"{name} takes a bias of type {x.dtype}")
    named(activation, _NAME)
    return x.new_empty((*x.shape[:-1], weight.shape[0]))


linear_activation = register(
    f"{_NAME}(Tensor x, Tensor weight, Tensor? bias, str activation) -> Tensor",
    by_library=_by_library,
    without_gradients=_by_torch,
    by_torch=_by_torch,
    fake=_fake,
)
