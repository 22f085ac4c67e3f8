"""Cases of mma.sync."""

from collections.abc import Iterator
from typing import Any

import numpy as np

from tests.sandbox.emulator.golden.case import Buffers, Bytes, Case, Family, Within, raw, unwritten
from tests.sandbox.emulator.golden.draw import Draw
from tests.sandbox.emulator.golden.products import SETS, bound, operand, product, to_bits, to_values
from tests.sandbox.emulator.golden.sources import source

Array = np.ndarray[Any, Any]
_WARPS = 8


def mma_family() -> Family:
    return Family("mma", source("mma.cu"), tuple(_cases()))


def _cases() -> Iterator[Case]:
    for k in (16, 8):
        for element, accumulator in (("f16", "f32"), ("bf16", "f32"), ("f16", "f16")):
            for choice in SETS:
                yield _case(k, element, accumulator, choice)


def _case(k: int, element: str, accumulator: str, choice: str) -> Case:
    c_registers = 4 if accumulator == "f32" else 2
    counts = (k // 4, k // 8, c_registers)

    def build(draw: Draw) -> Buffers:
        warps = []
        for _ in range(_WARPS):
            for count, kind in zip(counts, (element, element, accumulator), strict=True):
                each = 32 * count * (1 if kind == "f32" else 2)
                warps.append(operand(draw, each, kind, choice).view(np.uint32).ravel())
        return raw(*warps), unwritten(_WARPS * c_registers * 128)

    def parts(given: Bytes) -> tuple[Array, Array]:
        words = given.view(np.uint32).reshape(_WARPS, sum(counts), 32)
        a, b, c = np.split(words, np.cumsum(counts)[:2], axis=1)
        results = [product(_a(x, element), _b(y, element), _c(z, accumulator)) for x, y, z in zip(a, b, c, strict=True)]
        return np.stack([one for one, _ in results]), np.stack([size for _, size in results])

    def expected(given: Bytes, _: Bytes) -> Bytes:
        return raw(*(_c_bits(one, accumulator) for one in parts(given)[0]))

    def slack(given: Bytes, _: Bytes) -> Array:
        sizes = bound(parts(given)[1], accumulator, k // 8)
        return np.concatenate([_c_order(one, accumulator) for one in sizes])

    exact = choice == "integers"
    within = Within("f32" if accumulator == "f32" else "f16", slack, "one alignment a step; see products.bound")
    return Case(
        name=f"mma/m16n8k{k} {element} {accumulator} {choice}",
        kernel=f"mma_k{k}_{element}_{accumulator}",
        build=build,
        grid=(_WARPS, 1, 1),
        comparison=None if exact else within,
        expected=expected if choice != "edges" else None,
        expected_element=accumulator,
        check=None if exact else slack,
    )


def _halves(words: Array) -> Array:
    """[register][lane] words as [register][lane][half] elements."""
    return np.ascontiguousarray(words).view(np.uint16).reshape(*words.shape, 2)


def _a(words: Array, element: str) -> Array:
    """A of 16 rows: lane l holds rows l/4 (+8 in odd registers), columns 2*(l%4) (+8 from register 2 on)."""
    matrix = np.zeros((16, 4 * len(words)))
    for register, half in np.ndindex(len(words), 2):
        lanes = np.arange(32)
        rows, columns = lanes // 4 + 8 * (register % 2), 2 * (lanes % 4) + half + 8 * (register // 2)
        matrix[rows, columns] = to_values(_halves(words)[register, :, half].copy(), element)
    return matrix


def _b(words: Array, element: str) -> Array:
    matrix = np.zeros((8 * len(words), 8))
    for register, half in np.ndindex(len(words), 2):
        lanes = np.arange(32)
        matrix[2 * (lanes % 4) + half + 8 * register, lanes // 4] = to_values(_halves(words)[register, :, half].copy(), element)
    return matrix


def _c_places(accumulator: str) -> tuple[Array, Array]:
    """Row and column of every element of C in the order that a warp's registers are stored."""
    lanes = np.arange(32)
    if accumulator == "f32":
        rows = [lanes // 4 + 8 * (register // 2) for register in range(4)]
        columns = [2 * (lanes % 4) + register % 2 for register in range(4)]
    else:
        rows = [np.repeat(lanes // 4 + 8 * register, 2) for register in range(2)]
        columns = [(2 * (lanes % 4)[:, None] + np.arange(2)).ravel() for _ in range(2)]
    return np.concatenate(rows), np.concatenate(columns)


def _c(words: Array, accumulator: str) -> Array:
    matrix = np.zeros((16, 8))
    bits = np.ascontiguousarray(words).ravel()
    matrix[_c_places(accumulator)] = to_values(bits if accumulator == "f32" else bits.view(np.uint16), accumulator)
    return matrix


def _c_order(matrix: Array, accumulator: str) -> Array:
    return matrix[_c_places(accumulator)]


def _c_bits(matrix: Array, accumulator: str) -> Array:
    return to_bits(_c_order(matrix, accumulator), accumulator)
