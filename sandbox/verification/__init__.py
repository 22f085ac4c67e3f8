"""Proof of a candidate in seven tiers, over an array module (numpy or cupy) and an `Executor` that runs the kernel.

- `tiered_proof.py`: the tests of one contender as a sequence, for every kind of task
- `tiers.py`: those of a matrix product, in seven tiers
- `executor.py`: what a backend must provide
- `cases.py`: the fixed cases of tiers 1 to 3, with their references
- `inputs.py`: the inputs of every test
- `draws.py`: random numbers from a seed
- `elements.py`: f16 and bf16 as bit patterns
- `reference.py`: the float64 product
- `comparison.py`: output against reference
- `bounds.py`: how far a correct kernel may be from the exact product
- `activations.py`: functions of the sums, and how far a kernel may be from them
- `flips.py`: one inverted element between two runs
- `wanted.py`: what outputs should be, of gated tasks too, and how far they may be off
- `probes/`: why a result is wrong
"""
