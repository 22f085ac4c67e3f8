"""The elements of matrix fragments by the formulas of the PTX ISA, and elements as bits."""

from typing import Any

import numpy as np

Array = np.ndarray[Any, Any]
LANE = np.arange(32)
GROUP, THREAD = LANE // 4, LANE % 4


def bits(values: Array, element: str) -> Array:
    """The f16, bf16 or f32 bits of values, rounded to the type."""
    if element == "f16":
        return values.astype(np.float16).view(np.uint16)
    wide = values.astype(np.float32).view(np.uint32)
    return (wide >> 16).astype(np.uint16) if element == "bf16" else wide


def values(pattern: Array, element: str) -> Array:
    if element == "bf16":
        return (pattern.astype(np.uint32) << np.uint32(16)).view(np.float32).astype(np.float64)
    return pattern.view(np.float16 if element == "f16" else np.float32).astype(np.float64)


def pairs(matrix: Array) -> Array:
    """One register per lane of an 8x8 block of halves: row `GROUP`, columns 2*`THREAD` and the next."""
    low, high = (matrix[GROUP, 2 * THREAD + half].astype(np.uint32) for half in (0, 1))
    return low | high << np.uint32(16)


def from_pairs(register: Array) -> Array:
    block = np.zeros((8, 8), np.uint16)
    for half in (0, 1):
        block[GROUP, 2 * THREAD + half] = register >> np.uint32(16 * half) & 0xFFFF
    return block


def blocks_of_a(a: Array) -> list[Array]:
    """A (16 x k, or 32 x 16) row by row: pairs of row blocks, in them k blocks, in them row blocks."""
    rows, depth = a.shape
    return [
        pairs(a[8 * (2 * pair + row) :, 8 * k :][:8, :8])
        for pair in range(rows // 16)
        for k in range(depth // 8)
        for row in (0, 1)
    ]


def blocks_of_b(b: Array) -> list[Array]:
    """B (k x 8 or 16): lane's column `GROUP`, rows 2*`THREAD` and the next; k blocks, then column blocks."""
    depth, columns = b.shape
    return [pairs(b[8 * k :, 8 * n :][:8, :8].T) for n in range(columns // 8) for k in range(depth // 8)]


def blocks_of_sums(sums: Array) -> list[Array]:
    """Accumulators as bits (uint16 or uint32): row blocks, then column blocks; of f32 the even columns, then the odd ones."""
    rows, columns = sums.shape
    registers = []
    for n in range(columns // 8):
        for m in range(rows // 8):
            block = sums[8 * m :, 8 * n :][:8, :8]
            if sums.dtype == np.uint16:
                registers.append(pairs(block))
            else:
                registers += [block[GROUP, 2 * THREAD + odd] for odd in (0, 1)]
    return registers


def sums_of(registers: list[Array], shape: tuple[int, int], accumulator: str) -> Array:
    """The inverse of `blocks_of_sums`, as values."""
    result = np.zeros(shape, np.uint16 if accumulator == "f16" else np.uint32)
    left = iter(registers)
    for n in range(shape[1] // 8):
        for m in range(shape[0] // 8):
            block = result[8 * m :, 8 * n :][:8, :8]
            if accumulator == "f16":
                block[:] = from_pairs(next(left))
            else:
                for odd in (0, 1):
                    block[GROUP, 2 * THREAD + odd] = next(left)
    return values(result, accumulator)
