"""The matrices that timed launches multiply: random, never zero, in every layout that is timed, read-only for candidates."""

import random
from dataclasses import dataclass
from typing import Any

import cupy

from cudal2_agent.contract.records.task import ElementType, GemmTask
from cudal2_agent.sandbox.cuda.guard.buffers import storage_type
from cudal2_agent.sandbox.cuda.guard.mapping import Mapping
from cudal2_agent.sandbox.cuda.timing.sample_plan import slot_bytes
from cudal2_agent.sandbox.cuda.timing.trusted_timing import TrustedTiming
from cudal2_agent.sandbox.verification.inputs import Inputs


@dataclass(frozen=True)
class _Pool:
    """The matrices of one operand in one layout, as candidates see them and as the sandbox writes them.

    `key`: which of the two keys its numbers follow from. `transposed`: whether columns of the operand are contiguous.
    """

    mapping: Mapping
    matrices: Any
    writer: Any
    key: int
    transposed: bool


class OperandPools:
    """`count` matrices A and `count` matrices B. The layouts of an operand hold the same numbers.

    B lies there by rows and by columns, A by rows and, where the task's layout asks for it, by columns. The baselines read
    the others, and the judge of outputs reads both operands by rows.
    A pool is one mapping in its own address range. The numbers follow from keys that `renew` draws, so that any matrix can
    be made again whatever happened to the pool. Raises: MemoryError.
    """

    def __init__(self, task: GemmTask, count: int, device: int, trusted: TrustedTiming) -> None:
        self._task, self._trusted = task, trusted
        self._bf16 = task.element is ElementType.BF16
        self._pools = {name: self._pool(count, device, *stored) for name, stored in _stored(task).items()}
        self.a, self.b_nn = self._pools["a"].matrices, self._pools["b_nn"].matrices
        self.read_only = all(pool.mapping.read_only for pool in self._pools.values())
        self._keys = (0, 0)
        self._check_key = 0
        self._views: dict[tuple[int, int], Any] = {}
        self._checksums: list[int] = []

    def __len__(self) -> int:
        return len(self.a)

    def renew(self, draw: random.Random) -> None:
        """New numbers in every matrix."""
        self._keys, self._check_key = (draw.getrandbits(64), draw.getrandbits(64)), draw.getrandbits(64)
        for pool in self._pools.values():
            self._trusted.fill_operands(pool.writer, self._keys[pool.key], transposed=pool.transposed, bf16=self._bf16)
        self._checksums = self._sums()

    def operands(self, pair: tuple[int, int]) -> dict[str, Any]:
        """A pair's matrices in every layout, by their names in `Operands`."""
        return {name: self._matrix(pool.matrices, pair[pool.key]) for name, pool in self._pools.items()}

    def changed(self) -> str | None:
        """Which input differs from what it was made of, None where none does."""
        for pool, before, now in zip(self._pools.values(), self._checksums, self._sums(), strict=True):
            if before != now:
                return f"input {pool.mapping.name} was changed"
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
        for pool in self._pools.values():
            self._trusted.demote(pool.mapping.bytes())

    def close(self) -> None:
        self._views.clear()
        for pool in self._pools.values():
            pool.mapping.close()

    @staticmethod
    def _pool(count: int, device: int, name: str, shape: tuple[int, int], transposed: bool) -> _Pool:
        mapping = Mapping(count * slot_bytes(2 * shape[0] * shape[1]), device, name, sealed=True)
        read, written = (matrices(memory, count, *shape) for memory in (mapping.bytes(), mapping.writer()))
        return _Pool(mapping, read, written, key="AB".index(name), transposed=transposed)

    def _matrix(self, pool: Any, index: int) -> Any:
        """One matrix of a pool as its elements; made once, because thousands of launches use it."""
        key = (id(pool), index)
        if key not in self._views:
            self._views[key] = pool[index].view(storage_type(self._task.element))
        return self._views[key]

    def _sums(self) -> list[int]:
        """Checksums of the pools; waits for the GPU once."""
        sums = [self._trusted.checksum(pool.mapping.bytes(), self._check_key) for pool in self._pools.values()]
        return [int(total) for total in cupy.concatenate(sums).get()]


def _stored(task: GemmTask) -> dict[str, tuple[str, tuple[int, int], bool]]:
    """Operand, shape in memory and whether that is transposed, by names in `Operands`."""
    found = {
        "a": ("A", (task.m, task.k), False),
        "b_nn": ("B", (task.k, task.n), False),
        "b_tn": ("B", (task.n, task.k), True),
    }
    return {**found, "a_nt": ("A", (task.k, task.m), True)} if task.layout.transposes_a else found


def matrices(memory: Any, count: int, rows: int, columns: int) -> Any:
    """Bit patterns of matrices, each at the start of a slot. Shape: memory (bytes,), out (count, rows, columns) uint16."""
    stride = slot_bytes(2 * rows * columns)
    return cupy.lib.stride_tricks.as_strided(memory.view(cupy.uint16), (count, rows, columns), (stride, 2 * columns, 2))


class Ring:
    """A slot of `size_bytes` for the output, or the workspace, of every launch of a sample. Raises: MemoryError.

    Covered: before a sample every slot holds unpredictable bytes, so that nothing is kept there from one sample to the next. Of
    a workspace declared `restored` the declared bytes are zero, and are checked after the sample.
    """

    def __init__(
        self, name: str, size_bytes: int, slots: int, device: int, trusted: TrustedTiming, *, zero_bytes: int = 0
    ) -> None:
        self.slots, self.stride_bytes = slots, slot_bytes(size_bytes)
        self._size_bytes, self._zero_bytes, self._trusted = size_bytes, zero_bytes, trusted
        self._mapping = Mapping(slots * self.stride_bytes, device, name)
        self.memory = self._mapping.bytes()

    def slot(self, index: int) -> Any:
        """Shape: (size_bytes,), uint8."""
        start = index * self.stride_bytes
        return self.memory[start : start + self._size_bytes]

    def refill(self, used: int, key: int) -> None:
        """Fill the first `used` slots anew."""
        self._trusted.fill_ring(self.memory[: used * self.stride_bytes], self.stride_bytes, self._zero_bytes, key)

    def unrestored(self, used: int) -> int:
        """Bytes among the first `used` slots that should be zero again and are not."""
        if not self._zero_bytes:
            return 0
        shape, strides = (used, self._zero_bytes), (self.stride_bytes, 1)
        return int(cupy.count_nonzero(cupy.lib.stride_tricks.as_strided(self.memory, shape, strides)))

    def close(self) -> None:
        self._mapping.close()
