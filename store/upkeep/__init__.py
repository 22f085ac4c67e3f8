"""Keeps a store sound and small.

- `checking.py`: every hash, packed record, reference and repeated column.
- `pruning.py`: deletes steps and runs, and what nothing else refers to.
"""
