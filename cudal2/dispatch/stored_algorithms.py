"""The stored AutoTuning algorithm: the border to a program that can run a cuBLASLt algorithm by its name.

Missing today: `LibraryEntry.autotuned` is the name by which baselines keep an algorithm. Running it takes the algorithm's
configuration words, the cuBLASLt version that they belong to, and a host library that calls `cublasLtMatmul` with them. No part
of `cudal2` does so yet, so a `Dispatcher` without an implementation decides for the heuristic instead.
"""

from typing import Protocol


class StoredAlgorithms(Protocol):
    """cuBLASLt algorithms that this process can run."""

    def runs(self, algorithm: str) -> bool:
        """Whether an algorithm, as `LibraryEntry.autotuned` names it, is one of the cuBLASLt version that is loaded."""
        ...
