"""Trajectories as training data.

- `steps.py`: steps as JSON lines, with everything that is stored of them.
- `flashinfer/`: steps as a data set of flashinfer-bench.
"""
