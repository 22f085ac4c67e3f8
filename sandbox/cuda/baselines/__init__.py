"""The baselines, measured on the same buffers in the same run.

- `library_baselines.py`: all baselines of a task
- `library.py`: what a library's product shares
- `cublas.py`, `cublaslt.py`, `torch_matmul.py`: one library each
- `gated.py`, `gate.cu`: a product with both weights of a gated task, and the kernel behind it
- `torch_tensors.py`: PyTorch over the same buffers
"""
