"""The matrices that timed launches multiply: random, never zero, B in both layouts, read-only for candidates."""

import random
from typing import Any

import cupy

from contract.task import ElementType, GemmTask
from sandbox.cuda.guard.buffers import storage_type
from sandbox.cuda.guard.mapping import Mapping
from sandbox.cuda.timing.sample_plan import slot_bytes
from sandbox.cuda.timing.trusted_timing import TrustedTiming
from sandbox.verification.inputs import Inputs


class OperandPools:
    """`count` matrices A and `count` matrices B. The layouts of B hold the same numbers.

    A pool is one mapping in its own address range. The numbers follow from keys that `renew` draws, so that any matrix can
    be made again whatever happened to the pool. Raises: MemoryError.
    """

    def __init__(self, task: GemmTask, count: int, device: int, trusted: TrustedTiming) -> None:
        self._task, self._trusted = task, trusted
        self._bf16 = task.element is ElementType.BF16
        self._mappings = [
            Mapping(count * slot_bytes(2 * rows * columns), device, name, sealed=True)
            for name, rows, columns in (("A", task.m, task.k), ("B", task.k, task.n), ("B", task.n, task.k))
        ]
        self.read_only = all(mapping.read_only for mapping in self._mappings)
        shapes = ((task.m, task.k), (task.k, task.n), (task.n, task.k))
        self.a, self.b_nn, self._b_tn = (
            matrices(mapping.bytes(), count, *shape) for mapping, shape in zip(self._mappings, shapes, strict=True)
        )
        self._writers = [
            matrices(mapping.writer(), count, *shape) for mapping, shape in zip(self._mappings, shapes, strict=True)
        ]
        self._keys = (0, 0)
        self._check_key = 0
        self._views: dict[tuple[int, int], Any] = {}
        self._checksums: list[int] = []

    def __len__(self) -> int:
        return len(self.a)

    def renew(self, draw: random.Random) -> None:
        """New numbers in every matrix."""
        self._keys, self._check_key = (draw.getrandbits(64), draw.getrandbits(64)), draw.getrandbits(64)
        a_key, b_key = self._keys
        for pool, key, transposed in zip(self._writers, (a_key, b_key, b_key), (False, False, True), strict=True):
            self._trusted.fill_operands(pool, key, transposed=transposed, bf16=self._bf16)
        self._checksums = self._sums()

    def operands(self, pair: tuple[int, int]) -> tuple[Any, Any, Any]:
        """A and B in both layouts, as a contender binds them."""
        a, b = pair
        return self._matrix(self.a, a), self._matrix(self.b_nn, b), self._matrix(self._b_tn, b)

    def changed(self) -> str | None:
        """Which input differs from what it was made of, None where none does."""
        for mapping, before, now in zip(self._mappings, self._checksums, self._sums(), strict=True):
            if before != now:
                return f"input {mapping.name} was changed"
        return None

    def made_again(self, pair: tuple[int, int]) -> Inputs:
        """A pair's numbers made again from their keys, in memory that no candidate knows."""
        task, (a_key, b_key) = self._task, self._keys
        a, b = cupy.empty((1, task.m, task.k), cupy.uint16), cupy.empty((1, task.k, task.n), cupy.uint16)
        self._trusted.fill_operands(a, a_key, transposed=False, bf16=self._bf16, first=pair[0])
        self._trusted.fill_operands(b, b_key, transposed=False, bf16=self._bf16, first=pair[1])
        return Inputs(a[0], b[0])

    def demote(self) -> None:
        """Make every L2 line of the pools an ordinary one, whatever policy it was read under."""
        for mapping in self._mappings:
            self._trusted.demote(mapping.bytes())

    def close(self) -> None:
        self._views.clear()
        for mapping in self._mappings:
            mapping.close()

    def _matrix(self, pool: Any, index: int) -> Any:
        """One matrix of a pool as its elements; made once, because thousands of launches use it."""
        key = (id(pool), index)
        if key not in self._views:
            self._views[key] = pool[index].view(storage_type(self._task.element))
        return self._views[key]

    def _sums(self) -> list[int]:
        """Checksums of the pools; waits for the GPU once."""
        sums = [self._trusted.checksum(mapping.bytes(), self._check_key) for mapping in self._mappings]
        return [int(total) for total in cupy.concatenate(sums).get()]


def matrices(memory: Any, count: int, rows: int, columns: int) -> Any:
    """Bit patterns of matrices, each at the start of a slot. Shape: memory (bytes,), out (count, rows, columns) uint16."""
    stride = slot_bytes(2 * rows * columns)
    return cupy.lib.stride_tricks.as_strided(memory.view(cupy.uint16), (count, rows, columns), (stride, 2 * columns, 2))
