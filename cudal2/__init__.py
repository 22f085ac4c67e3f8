"""Kernels that campaigns found, for programs that multiply matrices. It imports without a GPU and without PyTorch."""

import sys
from typing import Any

from cudal2.version import __version__ as __version__

# PyTorch is imported with the first of these that is used.
_OF_TORCH = ("configure", "disable", "disable_inductor", "enable", "enable_inductor", "matmul", "status")


def __getattr__(name: str) -> Any:
    if name not in _OF_TORCH:
        raise AttributeError(f"module 'cudal2' has no attribute {name!r}")
    import cudal2.torch as found

    value = globals()[name] = getattr(found, name)
    return value


def __dir__() -> list[str]:
    return sorted({*globals(), *_OF_TORCH})


if "torch" in sys.modules:  # a program that has PyTorch gets `torch.ops.cudal2` with this import
    import cudal2.torch as _registered  # noqa: F401
