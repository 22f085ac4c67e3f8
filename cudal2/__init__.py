"""Kernels that campaigns found, for programs that multiply matrices. It imports without a GPU and without PyTorch."""

import sys
from typing import Any

__version__ = "0.1.0"

# PyTorch is imported with the first of these that is used.
_OF_TORCH = {
    "matmul": "cudal2.torch.matrix_product",
    "configure": "cudal2.torch.torch_session",
    "enable": "cudal2.torch.torch_session",
    "disable": "cudal2.torch.torch_session",
    "status": "cudal2.torch.torch_session",
    "enable_inductor": "cudal2.torch.inductor_choices",
    "disable_inductor": "cudal2.torch.inductor_choices",
}


def __getattr__(name: str) -> Any:
    if name not in _OF_TORCH:
        raise AttributeError(f"module 'cudal2' has no attribute {name!r}")
    __import__("cudal2.torch")
    __import__(_OF_TORCH[name])
    return getattr(sys.modules[_OF_TORCH[name]], name)


def __dir__() -> list[str]:
    return sorted([*globals(), *_OF_TORCH])


if "torch" in sys.modules:  # a program that has PyTorch gets `torch.ops.cudal2` with this import
    __import__("cudal2.torch")
