"""The matrices that timed launches multiply: random, never zero, in every layout that is timed, read-only for candidates."""

import math
import random
from dataclasses import dataclass, replace
from functools import cached_property
from typing import Any

import cupy
import numpy as np

from cudal2_agent.contract.records.task import BIAS, UP, ElementType, GemmTask
from cudal2_agent.sandbox.cuda.guard.buffers import storage_type
from cudal2_agent.sandbox.cuda.guard.mapping import Mapping
from cudal2_agent.sandbox.cuda.guard.placement import ALIGNMENT_BYTES, scatter, slot_bytes
from cudal2_agent.sandbox.cuda.timing.trusted_timing import Matrices, Numbers, TrustedTiming
from cudal2_agent.sandbox.verification.inputs import Inputs, density_of_ones, normal_scale, weight_scale

_KEYS = {"A": 0, "B": 1, BIAS: 2, UP: 2}
JOINED = "B or up"  # the mapping that holds both


@dataclass(frozen=True)
class _Pool:
    """The matrices of one operand in one layout, as candidates see them and as the sandbox writes them.

    `key`: which of the keys its numbers follow from. `transposed`: whether columns of the operand are contiguous.
    """

    mapping: Mapping
    matrices: Matrices
    writer: Matrices
    key: int
    transposed: bool


def are_joined(task: GemmTask) -> bool:
    """Whether baselines find B and `up` of a gated task one behind the other: where `up` is then as aligned as B."""
    return task.gated and 2 * task.n * task.k % ALIGNMENT_BYTES == 0


class OperandPools:
    """`count` matrices A and `count` matrices B, each B with the bias or the `up` that the task has. The layouts of an operand
    hold the same numbers.

    B lies there by rows and by columns, A by rows and, where the task's layout asks for it, by columns. The baselines read
    the others. The judge of outputs reads A by rows, and B by rows too, or by columns where the task has an activation. Of a
    gated task B and `up` lie there by columns, and by rows for a task's own layout. The baselines have them once more, one
    behind the other where that aligns both (`are_joined`), as programs do. A candidate has them apart, as in tests.
    A pool is one mapping in its own address range, of `least_bytes` at least; its matrices lie at places of their own draw
    (`placement.py`). The numbers have verification's scale. They follow from keys that `renew` draws, so that any matrix can be
    made again whatever happened to the pool. Raises: MemoryError.
    """

    def __init__(
        self, task: GemmTask, count: int, device: int, trusted: TrustedTiming, draw: random.Random, least_bytes: int = 0
    ) -> None:
        self._task, self._trusted = task, trusted
        self._bf16, self._scale = task.element is ElementType.BF16, normal_scale(task.k)
        self._pools = {name: self._pool(count, device, draw, least_bytes, *stored) for name, stored in _stored(task).items()}
        self._joined: Matrices | None = None
        self._halves: tuple[_Pool, ...] = ()
        if are_joined(task):
            self._joined, self._halves = self._join(count, device, draw, least_bytes)
        self._all = (*self._pools.values(), *self._halves)
        self._mappings = tuple(dict.fromkeys(pool.mapping for pool in self._all))
        self.a, self.b_tn = (self._pools[name].matrices for name in ("a", "b_tn"))
        self.read_only = all(mapping.read_only for mapping in self._mappings)
        self.spread_bytes = min(mapping.size_bytes for mapping in self._mappings)
        self.bias = self._pools[BIAS].matrices if task.bias else None
        self.up_tn = self._pools["up_tn"].matrices if task.gated else None
        self._keys = (0, 0, 0)
        self._check_key = 0
        self._views: dict[tuple[str, int], Any] = {}
        self._checksums: list[int] = []

    def __len__(self) -> int:
        return len(self.a)

    @property
    def b_nn(self) -> Matrices:
        return self._pools["b_nn"].matrices

    def renew(self, draw: random.Random) -> None:
        """New numbers in every matrix."""
        self._keys, self._check_key = (draw.getrandbits(64), draw.getrandbits(64), draw.getrandbits(64)), draw.getrandbits(64)
        for pool in self._all:
            self._trusted.fill_operands(pool.writer, self._numbers(pool))
        self._checksums = self._sums()

    def operands(self, pair: tuple[int, int]) -> dict[str, Any]:
        """A pair's matrices in every layout, by their names in `Operands`."""
        found = {name: self._matrix(name, pair[_of_pair(pool.key)], pool.matrices) for name, pool in self._pools.items()}
        if self._joined is not None:
            found["joined"] = self._matrix("joined", pair[1], self._joined)
        return {"b_nn": None, **found}

    def changed(self) -> str | None:
        """Which input differs from what it was made of, None where none does."""
        for mapping, before, now in zip(self._mappings, self._checksums, self._sums(), strict=True):
            if before != now:
                return f"input {mapping.name} was changed"
        return None

    def made_again(self, pair: tuple[int, int]) -> Inputs:
        """A pair's numbers made again from their keys, in memory that no candidate knows."""
        task = self._task
        made: list[Any] = []
        third = {None: (), BIAS: ((1, task.n),), UP: ((task.k, task.n),)}[task.third]
        shapes = (task.m, task.k), (task.k, task.n), *third
        for key, (rows, columns) in enumerate(shapes):
            one = Matrices(cupy.empty(2 * rows * columns, cupy.uint8), [0], rows, columns)
            self._trusted.fill_operands(one, self._numbers_of(key, transposed=False), first=pair[_of_pair(key)])
            made.append(one[0])
        a, b, *more = made
        return Inputs(a, b, up=more[0]) if task.gated else Inputs(a, b, *(bias.reshape(-1) for bias in more))

    def make_old(self, pair: tuple[int, int], draw: random.Random) -> None:
        """Other numbers in the pair's matrices, in the task's layout: normal ones as tests draw them, or zeros and ones."""
        ones = draw.choice((0.0, density_of_ones(self._task.k)))
        for pool in self._own():
            other = replace(self._numbers(pool), key=draw.getrandbits(64), ones=ones)
            index = pair[_of_pair(pool.key)]
            one = Matrices(pool.writer.memory, [pool.writer.starts[index]], pool.writer.rows, pool.writer.columns)
            self._trusted.fill_operands(one, other, first=index)

    def renew_late(self, pair: tuple[int, int], d: Any, before: Any, early: Any, delay_ns: int) -> None:
        """Enqueue a predecessor that restores the pair's numbers late. As `TrustedTiming.late_operands`."""
        inputs = [(pool.writer, self._numbers(pool), pair[_of_pair(pool.key)]) for pool in self._own()]
        self._trusted.late_operands(inputs, d, before, early, delay_ns)

    def demote(self) -> None:
        """Make every L2 line of the pools an ordinary one, whatever policy it was read under."""
        for mapping in self._mappings:
            self._trusted.demote(mapping.bytes())

    def close(self) -> None:
        self._views.clear()
        for mapping in self._mappings:
            mapping.close()

    def _own(self) -> list[_Pool]:
        """The pools of A and of B in the task's layout, and of a bias or `up`."""
        layout, of_b = self._task.layout, "tn" if self._task.layout.transposes_b else "nn"
        names = "a_nt" if layout.transposes_a else "a", f"b_{of_b}", BIAS, f"up_{of_b}"
        return [self._pools[name] for name in names if name in self._pools]

    def _numbers(self, pool: _Pool) -> Numbers:
        return self._numbers_of(pool.key, transposed=pool.transposed)

    def _numbers_of(self, key: int, *, transposed: bool) -> Numbers:
        """A bias is as large as the products; B and `up` have the scale of the tests."""
        task = self._task
        if key == _KEYS[BIAS] and task.bias:
            scale = self._scale**2 * math.sqrt(task.k)
        else:
            scale = self._scale if key == _KEYS["A"] else weight_scale(task)
        return Numbers(self._keys[key], transposed=transposed, bf16=self._bf16, scale=scale)

    def _pool(
        self,
        count: int,
        device: int,
        draw: random.Random,
        least_bytes: int,
        name: str,
        shape: tuple[int, int],
        transposed: bool,
        called: str = "",
    ) -> _Pool:
        starts, size_bytes = scatter(count, 2 * shape[0] * shape[1], draw, least_bytes)
        mapping = Mapping(size_bytes, device, called or name, sealed=True)
        self._trusted.fill_ring(mapping.writer(), draw.getrandbits(64))  # what lies between matrices
        read, written = (Matrices(memory, starts, *shape) for memory in (mapping.bytes(), mapping.writer()))
        return _Pool(mapping, read, written, key=_KEYS[name], transposed=transposed)

    def _join(self, count: int, device: int, draw: random.Random, least_bytes: int) -> tuple[Matrices, tuple[_Pool, ...]]:
        """B and `up` by columns, each `up` behind its B in one mapping: as one matrix, and the two halves."""
        task = self._task
        both, half = (2 * task.n, task.k), (task.n, task.k)
        pool = self._pool(count, device, draw, least_bytes, "B", both, transposed=True, called=JOINED)
        halves = []
        for key, behind in (("B", 0), (UP, 2 * task.n * task.k)):
            starts = [start + behind for start in pool.matrices.starts]
            read, written = (Matrices(each.memory, starts, *half) for each in (pool.matrices, pool.writer))
            halves.append(_Pool(pool.mapping, read, written, key=_KEYS[key], transposed=True))
        return pool.matrices, tuple(halves)

    def _matrix(self, name: str, index: int, matrices: Matrices) -> Any:
        """One matrix of a pool as its elements; made once, because thousands of launches use it."""
        if (name, index) not in self._views:
            self._views[name, index] = matrices[index].view(storage_type(self._task.element))
        return self._views[name, index]

    def _sums(self) -> list[int]:
        """Checksums of the pools; waits for the GPU once."""
        sums = [self._trusted.checksum(mapping.bytes(), self._check_key) for mapping in self._mappings]
        return [int(total) for total in cupy.concatenate(sums).get()]


def _stored(task: GemmTask) -> dict[str, tuple[str, tuple[int, int], bool]]:
    """Operand, shape in memory and whether that is transposed, by names in `Operands`."""
    by_rows, by_columns = (task.k, task.n), (task.n, task.k)
    found = {"a": ("A", (task.m, task.k), False)}
    if not task.gated or not task.layout.transposes_b:
        found["b_nn"] = ("B", by_rows, False)
    found["b_tn"] = ("B", by_columns, True)
    if task.gated:
        found |= {"up_tn": (UP, by_columns, True)}
        found |= {} if task.layout.transposes_b else {"up_nn": (UP, by_rows, False)}
    found |= {"a_nt": ("A", (task.k, task.m), True)} if task.layout.transposes_a else {}
    return found | ({BIAS: (BIAS, (1, task.n), False)} if task.bias else {})


def _of_pair(key: int) -> int:
    """Which matrix of a pair a key belongs to: a bias, or `up`, to its B."""
    return min(key, 1)


class Ring:
    """A slot of `size_bytes` for the output, or the workspace, of every launch of a sample. Raises: MemoryError.

    Covered: before a sample all of its memory holds unpredictable bytes, what lies between slots too, so that nothing is kept
    there from one sample to the next. Of a workspace declared `restored` the declared bytes are zero, and are checked after the
    sample. Slots lie at places of their own draw.
    """

    def __init__(
        self,
        name: str,
        size_bytes: int,
        slots: int,
        device: int,
        trusted: TrustedTiming,
        draw: random.Random,
        *,
        zero_bytes: int = 0,
    ) -> None:
        self.name, self.slots, self.size_bytes = name, slots, size_bytes
        self._zero_bytes, self._trusted = zero_bytes, trusted
        self.starts, room = scatter(slots, size_bytes, draw)
        self._mapping = Mapping(room, device, name)
        self.memory = self._mapping.bytes()
        self._key = 0

    @cached_property
    def _words(self) -> Any:
        return cupy.asarray(np.array(self.starts, dtype=np.uint64) // 8)

    def slot(self, index: int) -> Any:
        """Shape: (size_bytes,), uint8."""
        return self.memory[self.starts[index] : self.starts[index] + self.size_bytes]

    def refill(self, key: int) -> None:
        """Fill all of the memory anew."""
        self._key = key
        self._trusted.fill_ring(self.memory, key)
        if self._zero_bytes:
            self._trusted.zero_slots(self.memory, self._words, self._zero_bytes)

    def unrestored(self) -> int:
        """Bytes that should be zero again and are not."""
        return self._trusted.count_nonzero(self.memory, self._words, self._zero_bytes) if self._zero_bytes else 0

    def owned(self) -> Any:
        """Blocks that no launch needs to leave as they were filled: those that begin as zeros. Shape: (blocks,) uint8."""
        blocks = self.memory.nbytes // ALIGNMENT_BYTES
        if not self._zero_bytes:
            return cupy.zeros(blocks, dtype=cupy.uint8)
        marks = np.zeros(blocks, dtype=np.uint8)
        for start in self.starts:
            marks[self._blocks(start, self._zero_bytes)] = 1
        return cupy.asarray(marks)

    def give(self, owned: Any, slot: int) -> None:
        """Mark a slot as one that a launch may have changed."""
        owned[self._blocks(self.starts[slot], self.size_bytes)] = 1

    def strays(self, owned: Any) -> Any:
        """Pieces of 16 bytes that were changed since the last filling in blocks that are not marked. Shape: (1,) uint64."""
        return self._trusted.strays(self.memory, self._key, owned)

    def close(self) -> None:
        self._mapping.close()

    @staticmethod
    def _blocks(start: int, size_bytes: int) -> slice:
        return slice(start // ALIGNMENT_BYTES, (start + slot_bytes(size_bytes)) // ALIGNMENT_BYTES)
