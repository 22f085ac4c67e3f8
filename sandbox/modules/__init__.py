"""PyTorch modules as tasks: their cases, bounds and proof, over torch tensors on a CPU or a GPU.

- `executor.py`: what a backend must provide
"""
