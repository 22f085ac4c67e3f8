"""PyTorch modules as tasks: traced in a jail, their cases, bounds and proof, over torch tensors on a CPU or a GPU.

- `tracing/`: from a problem file to a task, in a jailed process
- `operators.py`: the operators that a graph may have
- `interpreter.py`: runs a graph; `wide_convolution.py`: its convolutions in float64 on a GPU
- `uses.py`: what a graph uses parameters and whole-number inputs for
- `cases.py`: the inputs of every test
- `noise.py`: what rounding may do to an operation
- `bounds.py`: how far a right kernel may be from the reference
- `prepared.py`: a case with its references
- `evaluations.py`: a graph evaluated on one set of values, whole or along an axis
- `graph_axes.py`, `axis_rules.py`: dimensions that a graph keeps apart
- `pieces.py`, `judge_memory.py`: references piece by piece along such a dimension, where the whole would not fit
- `executor.py`: what a backend must provide
- `library_calls.py`: runs the library calls of a plan; `convolutions.py`: those that write into the plan's memory
- `proof.py`: the tests of a candidate, over an executor
- `redundancy.py`: operations that change nothing for any input
- `soundness.py`: whether a task's tests tell wrong programs from right ones
"""
