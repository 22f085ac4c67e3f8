"""PyTorch modules as tasks: traced in a jail, their cases, bounds and proof, over torch tensors on a CPU or a GPU.

- `tracing/`: from a problem file to a task, in a jailed process
- `operators.py`: the operators that a graph may have
- `interpreter.py`: runs a graph
- `executor.py`: what a backend must provide
"""
