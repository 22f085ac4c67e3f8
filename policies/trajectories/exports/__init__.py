"""Trajectories as training data.

- `steps.py`: steps as JSON lines, with everything that is stored of them.
"""
