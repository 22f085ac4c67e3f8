"""What peers need ahead of a run: shared libraries that nvcc builds, and kernels that DeepGEMM compiles.

- `jobs.py`: what is built, and how
- `cutlass_gemm.cu`: CUTLASS's collective builder in a handful of configurations
- `published_launch.cu`, `stand_in/`: a C entry around a published kernel file, and what such a file needs of torch
- `redirected_runtime.h`, `.cpp`: sends a published launcher's runtime calls to the caller's stream
- `deep_gemm.py`: lets DeepGEMM compile for many shapes at once
"""
