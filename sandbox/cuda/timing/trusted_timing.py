"""The timer's trusted kernels (`trusted_timing.cu`), as functions over device arrays on the current stream."""

import ctypes
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


class _OperandPool(ctypes.Structure):
    """`Pool` of trusted_timing.cu."""

    _fields_ = (
        ("stride", ctypes.c_uint64),
        ("first", ctypes.c_uint64),
        ("count", ctypes.c_uint64),
        ("rows", ctypes.c_uint32),
        ("columns", ctypes.c_uint32),
        ("key", ctypes.c_uint64),
        ("transposed", ctypes.c_int),
        ("bf16", ctypes.c_int),
    )


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

    def fill_operands(self, pool: Any, key: int, *, transposed: bool, bf16: bool, first: int = 0) -> None:
        """Normal numbers of a key. Shape: pool (count, rows, columns) uint16, `first`: the number of its first matrix."""
        self._by_matrix("fill_operands", pool, _described(pool, key, transposed, bf16, first))

    def checksum(self, data: Any, key: int) -> Any:
        """A keyed sum over an array's bits, on the device. Shape: data (bytes,), whole 64-bit words; out (1,) uint64."""
        total = cupy.zeros(1, dtype=cupy.uint64)
        self._strided("checksum", data, cupy.uint64(data.nbytes // 8), cupy.uint64(key), total)
        return total

    def fill_ring(self, data: Any, stride_bytes: int, zero_bytes: int, key: int) -> None:
        """Unpredictable bytes, the first `zero_bytes` of each slot zero, in whole words. Shape: data (bytes,), whole slots."""
        pairs, stride = cupy.uint64(data.nbytes // 16), cupy.uint64(stride_bytes // 16)
        zero_words = cupy.uint64(-(-zero_bytes // 8))
        self._strided("fill_ring", data, pairs, stride, zero_words, cupy.uint64(key))

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

    def project(self, pool: Any, factors: Any, chosen: Any | None, applied: Any | None, *, bf16: bool) -> Any:
        """Products of matrices with vectors, in f32.

        Shape: pool (count, rows, columns) uint16, factors (vectors, columns); `chosen` and `applied` (slots,) uint32 name
        the matrix and the vector of each slot (all matrices in order, and the first vector, where None). Out (slots, rows).
        """
        count, rows, columns = pool.shape
        slots = count if chosen is None else len(chosen)
        sums = cupy.empty((slots, rows), dtype=cupy.float32)
        arguments = (
            pool,
            cupy.uint64(pool.strides[0] // 2),
            cupy.uint32(rows),
            cupy.uint32(columns),
            NOTHING if chosen is None else chosen,
            factors,
            NOTHING if applied is None else applied,
            sums,
            cupy.int32(bf16),
        )
        self._module.get_function("project")((-(-rows // ROWS), slots), (BLOCK,), arguments)
        return sums

    def apart(self, got: Any, wanted: Any, tolerance: float) -> tuple[int, int]:
        """How many numbers differ by more than a tolerance or are not finite, and the position of the first."""
        found = cupy.asarray(np.array([0, 2**63], dtype=np.uint64))
        self._strided("count_apart", got, wanted, cupy.uint64(got.size), cupy.float32(tolerance), found[:1], found[1:])
        count, first = found.get()
        return int(count), int(first)

    def _strided(self, name: str, *arguments: Any) -> None:
        self._module.get_function(name)((WAVES * self._sms,), (BLOCK,), arguments)

    def _by_matrix(self, name: str, pool: Any, *arguments: Any) -> None:
        """A kernel whose grid has a row of CTAs for each matrix, as far as that gives enough of them."""
        count, rows, columns = pool.shape
        height = min(count, MAX_GRID_Y)
        width = max(1, min(-(-rows * columns // (2 * BLOCK)), -(-WAVES * self._sms // height)))
        self._module.get_function(name)((width, height), (BLOCK,), (pool, *arguments))


def _described(pool: Any, key: int, transposed: bool, bf16: bool, first: int) -> Any:
    """A `Pool` as a kernel argument: cupy passes a numpy scalar of a structured type by value."""
    count, rows, columns = pool.shape
    described = _OperandPool(pool.strides[0] // 2, first, count, rows, columns, key, int(transposed), int(bf16))
    return np.frombuffer(bytes(described), dtype=np.dtype((np.void, ctypes.sizeof(_OperandPool))))[0]
