"""PyTorch modules as tasks: traced in a jail, their cases, bounds and proof, over torch tensors on a CPU or a GPU.

- `tracing/`: from a problem file to a task, in a jailed process
- `operators.py`: the operators that a graph may have
- `interpreter.py`: runs a graph
- `executor.py`: what a backend must provide
- `cases.py`: the inputs of every test
- `noise.py`: what rounding may do to an operation
- `bounds.py`: how far a right kernel may be from the reference
- `prepared.py`: a case with its references
- `library_calls.py`: runs the library calls of a plan
- `proof.py`: the tests of a candidate, over an executor
- `soundness.py`: whether a task's tests tell wrong programs from right ones
"""
