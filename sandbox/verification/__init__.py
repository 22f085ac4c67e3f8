"""Proof of a candidate in seven tiers, over an array module (numpy or cupy) and an `Executor` that runs the kernel.

- `tiers.py`: the seven tiers as a sequence of tests
- `executor.py`: what a backend must provide
- `cases.py`: the fixed cases of tiers 1 to 3, with their references
- `inputs.py`: the inputs of every test
- `draws.py`: random numbers from a seed
- `elements.py`: f16 and bf16 as bit patterns
- `reference.py`: the float64 product
- `comparison.py`: output against reference
- `bounds.py`: how far a correct kernel may be from the exact product
- `probes/`: why a result is wrong
"""
