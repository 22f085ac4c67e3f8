"""Many sets of operands for the timer: random, never zero, B in both layouts, allocated once per task."""

from typing import Any

import cupy

from contract.task import GemmTask
from sandbox.cuda.buffers import ALIGNMENT_BYTES, storage_type
from sandbox.cuda.contender import Operands
from sandbox.verification.bounds import Growth
from sandbox.verification.comparison import Comparison, compare_bounded
from sandbox.verification.elements import POISON, encode
from sandbox.verification.inputs import Inputs
from sandbox.verification.reference import Reference
from sandbox.verification.source import Source

CHUNK_ELEMENTS = 2**24
ALIGNMENT_ELEMENTS = ALIGNMENT_BYTES // 2


class OperandSets:
    """`count` sets in three pools. The layouts of B hold the same numbers, so that all contenders compute the same D."""

    def __init__(self, task: GemmTask, count: int, seed: int) -> None:
        source = Source(cupy, seed)
        self._task = task
        self._a = _pool(count, task.m, task.k)
        self._b_nn = _pool(count, task.k, task.n)
        self._b_tn = _pool(count, task.n, task.k)
        self._d = _pool(count, task.m, task.n)
        _fill(self._a, source, task)
        _fill(self._b_nn, source, task)
        for nn, tn in zip(self._b_nn, self._b_tn, strict=True):
            tn[...] = nn.T
        self._d.fill(POISON)

    def __len__(self) -> int:
        return len(self._a)

    def operands(self, index: int, workspace: Any | None = None) -> Operands:
        dtype = storage_type(self._task.element)
        a, b_nn, b_tn, d = (pool[index].view(dtype) for pool in (self._a, self._b_nn, self._b_tn, self._d))
        return Operands(a=a, b_nn=b_nn, b_tn=b_tn, d=d, workspace=workspace)

    def scrub(self) -> None:
        """Poison every D, so that a launch that leaves its output alone shows."""
        self._d.fill(POISON)

    def unwritten(self, count: int) -> int:
        """Outputs of the first `count` sets that still hold the poison."""
        return sum(int(cupy.count_nonzero(d == POISON)) for d in _chunks(self._d[:count]))

    def compare(self, index: int) -> Comparison:
        """One set's D against the float64 product of its inputs, within twice the bound of a verified kernel."""
        reference = Reference(cupy, self._task, Inputs(self._a[index], self._b_nn[index]), keep=False)
        return compare_bounded(cupy, self._task, self._d[index], reference, Growth.WALK, slack=2.0)


def _pool(count: int, rows: int, columns: int) -> Any:
    """Bit patterns of `count` matrices, each aligned. Shape: (count, rows, columns)."""
    stride = -(-rows * columns // ALIGNMENT_ELEMENTS) * ALIGNMENT_ELEMENTS
    memory = cupy.empty(count * stride, dtype=cupy.uint16)
    return cupy.lib.stride_tricks.as_strided(memory, (count, rows, columns), (2 * stride, 2 * columns, 2))


def _chunks(pool: Any) -> list[Any]:
    """A pool in pieces whose f32 copies stay small."""
    count, rows, columns = pool.shape
    if rows * columns <= CHUNK_ELEMENTS:
        sets = max(1, CHUNK_ELEMENTS // (rows * columns))
        return [pool[start : start + sets] for start in range(0, count, sets)]
    height = max(1, CHUNK_ELEMENTS // columns)
    return [pool[index, start : start + height] for index in range(count) for start in range(0, rows, height)]


def _fill(pool: Any, source: Source, task: GemmTask) -> None:
    for chunk in _chunks(pool):
        chunk[...] = encode(cupy, source.normal(chunk.shape), task.element)
