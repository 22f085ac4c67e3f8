"""Twelve kinds of general kernels: right ones by several algorithms each, and faults planted in them.

All are data; `test_planted_faults.py` proves them, and the fuser's kernels for the same tasks (`fused.py`).
"""

from tests.sandbox.emulator.modules.corpus import elements, products, reductions, rows, scans
from tests.sandbox.emulator.modules.corpus.kernel import Kernel

KERNELS: tuple[Kernel, ...] = (*rows.KERNELS, *elements.KERNELS, *products.KERNELS, *scans.KERNELS, *reductions.KERNELS)
