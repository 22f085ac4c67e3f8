"""The timer's trusted kernels (`trusted_timing.cu`), as functions over device arrays on the current stream."""

import ctypes
from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property
from importlib import resources
from typing import Any

import cupy
import numpy as np

BLOCK = 256
WAVES = 16  # CTAs per SM of a kernel that strides over its data
CHIP_BLOCK = 1024
ROWS = BLOCK // 32 * 4  # of one CTA of `project`: kRows of trusted_timing.cu for each warp
MAX_GRID_Y = 65535
LOCAL_FRAMES = (1024, 4096, 16384)  # bytes of local memory per thread that can be scrubbed
NOTHING = cupy.uint64(0)
_LATE_OPERANDS = 3
LATE_CTAS, LATE_BLOCK = 16, 512  # few, so that the CTAs of a dependent fit beside them


class _OperandPool(ctypes.Structure):
    """`Pool` of trusted_timing.cu."""

    _fields_ = (
        ("first", ctypes.c_uint64),
        ("count", ctypes.c_uint64),
        ("rows", ctypes.c_uint32),
        ("columns", ctypes.c_uint32),
        ("key", ctypes.c_uint64),
        ("transposed", ctypes.c_int),
        ("bf16", ctypes.c_int),
        ("scale", ctypes.c_float),
        ("ones", ctypes.c_float),
    )


@dataclass(frozen=True)
class Numbers:
    """What fills the matrices of a pool. `ones`: the probability of a one among zeros; 0 for normal numbers times `scale`."""

    key: int
    transposed: bool
    bf16: bool
    scale: float = 1.0
    ones: float = 0.0


class Matrices:
    """Matrices of one shape in one piece of memory, as bit patterns. `starts`: the byte where each begins, multiples of 16.

    An item is a view of one matrix. Shape: (rows, columns), uint16.
    """

    def __init__(self, memory: Any, starts: Sequence[int], rows: int, columns: int) -> None:
        self.memory, self.starts, self.rows, self.columns = memory, tuple(starts), rows, columns

    @cached_property
    def elements(self) -> Any:
        """The starts on the device, counted in elements."""
        return cupy.asarray(np.array(self.starts, dtype=np.uint64) // 2)

    def __len__(self) -> int:
        return len(self.starts)

    def __getitem__(self, index: int) -> Any:
        start = self.starts[index]
        return self.memory[start : start + 2 * self.rows * self.columns].view(np.uint16).reshape(self.rows, self.columns)

    def at(self, matrix: Any, row: Any, column: Any) -> Any:
        """Single elements. Shape: what the three broadcast to, whole numbers on the device; uint16 out."""
        return self.memory.view(np.uint16)[self.elements.astype(np.int64)[matrix] + row * self.columns + column]


@dataclass(frozen=True)
class Projected:
    """Two projections compared: how many rows are too far `apart`, and the first; sums of the squares of all distances, and of
    the wanted projections.
    """

    apart: int
    first: int
    distances: float
    sizes: float


class TrustedTiming:
    """The kernels, compiled for this GPU on first use."""

    def __init__(self, sms: int, smem_bytes: int) -> None:
        """`smem_bytes`: dynamic shared memory that one CTA may have."""
        self._sms, self._smem_bytes = sms, smem_bytes

    @cached_property
    def _module(self) -> Any:
        source = resources.files("cudal2_agent.sandbox.cuda.timing").joinpath("trusted_timing.cu").read_text()
        return cupy.RawModule(code=source, options=("-std=c++17",))

    @cached_property
    def _sink(self) -> Any:
        return cupy.zeros(1, dtype=cupy.uint64)

    def fill_operands(self, matrices: Matrices, numbers: Numbers, first: int = 0) -> None:
        """Fill every matrix; the numbers follow from the key and the matrix's own number, which counts from `first`."""
        count, size = len(matrices), matrices.rows * matrices.columns
        pool = _described(matrices, numbers, first, count)
        self._by_slot("fill_operands", count, -(-size // 2), matrices.memory, matrices.elements, pool)

    def late_operands(
        self, inputs: Sequence[tuple[Matrices, Numbers, int]], d: Any, before: Any, early: Any, delay_ns: int
    ) -> None:
        """Enqueue a predecessor that fills one matrix of A, of B and of a third operand, if any, after its dependents may run.

        `early`: counts the elements of D that differ from `before` when it ends.
        """
        operands: list[Any] = []
        for place in range(_LATE_OPERANDS):
            matrices, numbers, index = inputs[min(place, len(inputs) - 1)]
            operands += [matrices[index], _described(matrices, numbers, index, int(place < len(inputs)))]
        arguments = (*operands, d, before, cupy.uint64(d.size), early, cupy.uint64(delay_ns))
        self._module.get_function("late_operands")((LATE_CTAS,), (LATE_BLOCK,), arguments)

    def checksum(self, data: Any, key: int) -> Any:
        """A keyed sum over an array's bits, on the device. Shape: data (bytes,), whole 64-bit words; out (1,) uint64."""
        total = cupy.zeros(1, dtype=cupy.uint64)
        self._strided("checksum", data, cupy.uint64(data.nbytes // 8), cupy.uint64(key), total)
        return total

    def fill_ring(self, data: Any, key: int) -> None:
        """Unpredictable bytes. Shape: data (bytes,), a multiple of 16."""
        self._strided("fill_ring", data, cupy.uint64(data.nbytes // 16), cupy.uint64(key))

    def strays(self, data: Any, key: int, owned: Any) -> Any:
        """How many pieces of 16 bytes no longer hold what `fill_ring` wrote, on the device.

        Shape: owned (blocks of 256 bytes,) uint8: blocks that may have changed; out (1,) uint64.
        """
        found = cupy.zeros(1, dtype=cupy.uint64)
        self._strided("count_strays", data, cupy.uint64(data.nbytes // 16), cupy.uint64(key), owned, found)
        return found

    def zero_slots(self, data: Any, words: Any, size_bytes: int) -> None:
        """Zero the first bytes of every slot, in whole words. Shape: words (slots,) uint64, where each slot starts."""
        size = -(-size_bytes // 8)
        self._by_slot("zero_slots", len(words), size, data, words, cupy.uint64(len(words)), cupy.uint64(size))

    def count_nonzero(self, data: Any, words: Any, size_bytes: int) -> int:
        """Bytes that are not zero among the first `size_bytes` of every slot. Shape: as `zero_slots`."""
        found = cupy.zeros(1, dtype=cupy.uint64)
        arguments = (data, words, cupy.uint64(len(words)), cupy.uint64(size_bytes), found)
        self._by_slot("count_nonzero", len(words), size_bytes, *arguments)
        return int(found[0])

    def scrub_chip(self, key: int) -> None:
        """Overwrite shared memory and registers of every SM."""
        function = self._module.get_function("scrub_chip")
        function.max_dynamic_shared_size_bytes = self._smem_bytes
        words = cupy.uint32(self._smem_bytes // 4)
        function((self._sms,), (CHIP_BLOCK,), (words, cupy.uint64(key), self._sink), shared_mem=self._smem_bytes)

    def scrub_local(self, key: int, frame_bytes: int) -> None:
        """Overwrite the local memory of every thread that can be resident, up to a frame of `LOCAL_FRAMES`."""
        size = next(size for size in LOCAL_FRAMES if size >= frame_bytes)
        function = self._module.get_function(f"scrub_local_{size}")
        function((2 * self._sms,), (CHIP_BLOCK,), (cupy.uint64(key), self._sink, cupy.uint32(1)))

    def demote(self, data: Any) -> None:
        """Make every L2 line of an array an ordinary one, whatever policy it was read under."""
        self._strided("demote", data, cupy.uint64(data.nbytes // 128))

    def sweep(self, data: Any, key: int) -> None:
        """Write a whole array. Shape: data (bytes,), a multiple of 16."""
        self._strided("sweep", data, cupy.uint64(data.nbytes // 16), cupy.uint64(key))

    def project(self, pool: Matrices, factors: Any, chosen: Any | None, applied: Any | None, *, bf16: bool) -> Any:
        """Products of matrices with vectors, in f32.

        Shape: pool (count, rows, columns) uint16, factors (vectors, columns); `chosen` and `applied` (slots,) uint32 name
        the matrix and the vector of each slot (all matrices in order, and the first vector, where None). Out (slots, rows).
        """
        slots = len(pool) if chosen is None else len(chosen)
        sums = cupy.empty((slots, pool.rows), dtype=cupy.float32)
        arguments = (
            pool.memory,
            pool.elements,
            cupy.uint32(pool.rows),
            cupy.uint32(pool.columns),
            NOTHING if chosen is None else chosen,
            factors,
            NOTHING if applied is None else applied,
            sums,
            cupy.int32(bf16),
        )
        self._module.get_function("project")((-(-pool.rows // ROWS), slots), (BLOCK,), arguments)
        return sums

    def apart(self, got: Any, wanted: Any, tolerance: float) -> Projected:
        """Numbers that differ by more than a tolerance or are not finite."""
        found = cupy.asarray(np.array([0, 2**63, 0, 0], dtype=np.uint64))
        squares = found[2:].view(cupy.float64)
        arguments = (got, wanted, cupy.uint64(got.size), cupy.float32(tolerance), found[:1], found[1:], squares)
        self._strided("count_apart", *arguments)
        told = found.get()
        distances, sizes = told[2:].view(np.float64)
        return Projected(int(told[0]), int(told[1]), float(distances), float(sizes))

    def _strided(self, name: str, *arguments: Any) -> None:
        self._module.get_function(name)((WAVES * self._sms,), (BLOCK,), arguments)

    def _by_slot(self, name: str, count: int, size: int, *arguments: Any) -> None:
        """A kernel whose grid has a row of CTAs for each slot, as far as that gives enough of them."""
        height = min(count, MAX_GRID_Y)
        width = max(1, min(-(-size // BLOCK), -(-WAVES * self._sms // height)))
        self._module.get_function(name)((width, height), (BLOCK,), arguments)


def _described(matrices: Matrices, numbers: Numbers, first: int, count: int) -> Any:
    """A `Pool` as a kernel argument: cupy passes a numpy scalar of a structured type by value."""
    shape, kind = (matrices.rows, matrices.columns), (int(numbers.transposed), int(numbers.bf16))
    described = _OperandPool(first, count, *shape, numbers.key, *kind, numbers.scale, numbers.ones)
    return np.frombuffer(bytes(described), dtype=np.dtype((np.void, ctypes.sizeof(_OperandPool))))[0]
