"""Kernels that campaigns found, for programs that multiply matrices. It imports without a GPU and without PyTorch."""

__version__ = "0.1.0"
