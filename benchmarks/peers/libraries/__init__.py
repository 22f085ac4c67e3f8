"""Shared libraries of peers, built by nvcc ahead of a run.

- `jobs.py`: what is built, and how
- `cutlass.py`, `cutlass_gemm.cu`: CUTLASS's collective builder in a handful of configurations
- `published_launch.cu`, `stand_in/`: a C entry around a published kernel file, and what such a file needs of torch
"""
