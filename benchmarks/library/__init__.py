<<<<<<< HEAD
"""What the library gains in PyTorch, against PyTorch alone, in paired rounds of one process.

    python -m benchmarks.library all --out FOLDER

- `__main__.py`: the command; each part writes one JSON file, after every row
- `host_costs.py`: host time of a call, by the way it takes
- `transformer_block.py`: a block forward and backward, in eager mode, compiled and in CUDA graphs
- `dispatched_shapes.py`: every grid shape and random ones
- `paired_rounds.py`: two programs in turns, and their ratio with its interval
"""
=======
"""What programs pay for the kernels of a library."""
>>>>>>> l2
