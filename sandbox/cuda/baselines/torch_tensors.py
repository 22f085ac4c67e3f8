"""PyTorch over buffers of the sandbox: tensors on the same memory, streams, activations in place.

torch is imported where it is used, and may be missing.
"""

from functools import cache
from typing import Any

import cupy

from cudal2_agent.contract.records.task import Activation, ElementType
from cudal2_agent.sandbox.cuda.baselines.library import Unavailable


def torch_with_gpu() -> Any:
    """Raises: Unavailable."""
    try:
        import torch
    except ImportError as exc:
        raise Unavailable(f"torch is missing ({exc})") from exc
    if not torch.cuda.is_available():
        raise Unavailable(f"torch {torch.__version__} is built without CUDA or finds no GPU")
    return torch


def tensor_of(torch: Any, array: Any, element: ElementType) -> Any:
    """The same memory as a tensor, exchanged as int16, a type that both libraries support."""
    kind = torch.float16 if element is ElementType.F16 else torch.bfloat16
    return torch.from_dlpack(array.view(cupy.int16)).view(kind)


@cache
def torch_stream(torch: Any, stream: int) -> Any:
    """PyTorch's object for a stream that is given by its handle."""
    return torch.cuda.ExternalStream(stream)


def activate(torch: Any, activation: Activation, d: Any) -> None:
    """PyTorch's own kernel in place: each element is read, computed in f32, and rounded."""
    match activation:
        case Activation.RELU:
            torch.relu_(d)
        case Activation.SILU:
            torch.ops.aten.silu.out(d, out=d)
        case Activation.GELU | Activation.GELU_TANH:
            approximate = "tanh" if activation is Activation.GELU_TANH else "none"
            torch.ops.aten.gelu.out(d, approximate=approximate, out=d)
