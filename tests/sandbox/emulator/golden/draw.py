"""Inputs from a seed: random bits, edge values, and floats whose sums are exact or cancel.

Only PCG64's raw stream is used, which numpy keeps stable, and no function that differs between mathematical libraries.
"""

from typing import Any

import numpy as np

Array = np.ndarray[Any, Any]

_F32_EDGES = (
    *(0x00000000, 0x00000001, 0x00000002, 0x00400000, 0x007FFFFF, 0x00800000, 0x00800001, 0x01000000, 0x01800000),
    *(0x3F800000, 0x3F800001, 0x3F7FFFFF, 0x3F000000, 0x3F000001, 0x3EFFFFFF, 0x3FC00000, 0x40200000, 0x40000000, 0x40490FDB),
    *(0x3F801000, 0x3F803000, 0x3F800FFF, 0x3F801001, 0x3F808000, 0x3F818000, 0x3F807FFF, 0x3F808001),  # ties of f16, bf16
    *(0x477FE000, 0x477FEFFF, 0x477FF000, 0x47800000, 0x33800000, 0x33000000, 0x33000001, 0x32FFFFFF, 0x387FC000, 0x387FE000),
    *(0x38800000, 0x33C00000, 0x34A00000, 0x7F7F8000, 0x7F7F7FFF, 0x7F7FFFFF, 0x7F000000, 0x7F800000),
    *(0x4F000000, 0x4EFFFFFF, 0x4F7FFFFF, 0x4F800000, 0x5EFFFFFF, 0x5F000000, 0x5F7FFFFF, 0x5F800000, 0x4B000001, 0x4AFFFFFF),
    *(0x43000000, 0x42FF0000, 0x437F8000, 0x47000000, 0x46FFFF00, 0x477FFF80, 0x00000800, 0x00008000, 0x7FC00000, 0x7FFFFFFF),
    *(0x7F800001, 0x7FC12345, 0x7FA00000),
)
_F16_EDGES = (
    *(0x0000, 0x0001, 0x0002, 0x0200, 0x03FF, 0x0400, 0x0401, 0x0800, 0x3C00, 0x3C01, 0x3BFF, 0x3800, 0x3801, 0x37FF),
    *(0x3E00, 0x4100, 0x4000, 0x6400, 0x63FF, 0x6800, 0x7BFF, 0x7BFE, 0x7800, 0x77FF, 0x7C00, 0x7E00, 0x7FFF, 0x7C01, 0x7D23),
)
_BF16_EDGES = (
    *(0x0000, 0x0001, 0x0002, 0x0040, 0x007F, 0x0080, 0x0081, 0x0100, 0x3F80, 0x3F81, 0x3F7F, 0x3F00, 0x3F01, 0x3EFF),
    *(0x3FC0, 0x4020, 0x4000, 0x4300, 0x42FF, 0x7F7F, 0x7F7E, 0x7F00, 0x7EFF, 0x7F80, 0x7FC0, 0x7FFF, 0x7F81, 0x7FA3),
)
_F64_WORDS = (
    "0 1 000fffffffffffff 0010000000000000 3ff0000000000000 3ff8000000000000 7fefffffffffffff 7ff0000000000000 "
    "7ff8000000000000 7ff0000000000001 7fffffffffffffff 36a0000000000000 3690000000000000 3690000000000001 "
    "380fffffe0000000 380ffffff0000000 3810000000000000 47efffffe0000000 47efffffefffffff 47effffff0000000 "
    "3ff0000010000000 3ff0000030000000 3ff0000010000001 41dfffffffc00000 41e0000000000000 43e0000000000000 43f0000000000000"
)
_F64_EDGES = tuple(int(word, 16) for word in _F64_WORDS.split())
_SIGNED = {"f16": (_F16_EDGES, 16), "bf16": (_BF16_EDGES, 16), "f32": (_F32_EDGES, 32), "f64": (_F64_EDGES, 64)}
_LAYOUT = {"f16": (10, 15), "bf16": (7, 127), "f32": (23, 127), "f64": (52, 1023)}  # mantissa bits, bias


class Draw:
    """A stream of values."""

    def __init__(self, seed: int) -> None:
        self._stream = np.random.PCG64(seed)

    def words(self, count: int) -> Array:
        return np.asarray(self._stream.random_raw(count), np.uint64)

    def bits(self, count: int, width: int) -> Array:
        return (self.words(count) >> np.uint64(64 - width)).astype(f"u{width // 8}")

    def below(self, count: int, limit: int) -> Array:
        return (self.words(count) >> np.uint64(11)) % np.uint64(limit)

    def between(self, count: int, low: int, high: int) -> Array:
        """Integers from `low` up to and including `high`."""
        return self.below(count, high - low + 1).astype(np.int64) + low

    def normals(self, count: int) -> Array:
        """Nearly normal: the sum of twelve uniform values, exact in binary."""
        parts = self.below(12 * count, 1 << 20).astype(np.int64).reshape(count, 12)
        return np.asarray(parts.sum(1) - 6 * (1 << 20)).astype(np.float64) / (1 << 20)

    def wide(self, count: int, kind: str, spread: int) -> Array:
        """Bits of floats whose exponents lie within `spread` of one."""
        mantissa, bias = _LAYOUT[kind]
        width = _SIGNED[kind][1]
        exponent = (self.between(count, -spread, spread) + bias).astype(np.uint64)
        random = self.words(count)
        value = exponent << np.uint64(mantissa) | random & np.uint64((1 << mantissa) - 1)
        return np.asarray((value | random >> np.uint64(63) << np.uint64(width - 1)).astype(f"u{width // 8}"))

    def column(self, kind: str, count: int, turn: int = 0) -> Array:
        """One operand of `count` elements: edge values, edges in random order, near values, random bits."""
        if kind.endswith("x2"):
            halves = np.stack([self.column(kind[:-2], count, turn), self.column(kind[:-2], count, turn + 1)], axis=1)
            return np.ascontiguousarray(halves).view(np.uint32).ravel()
        edges, width = self._edges(kind)
        first = np.roll(edges, 7 * turn)[: count // 2]
        mixed = edges[self.below(count // 2 - len(first), len(edges))]
        rest = count - count // 2
        near = self._near(kind, rest // 2, width)
        return np.concatenate([first, mixed, near, self.bits(rest - rest // 2, width)]).astype(f"u{width // 8}")

    def _edges(self, kind: str) -> tuple[Array, int]:
        if kind in _SIGNED:
            patterns, width = _SIGNED[kind]
            both = [pattern | sign << (width - 1) for pattern in patterns for sign in (0, 1)]
            return np.array(both, np.uint64), width
        width = int(kind[1:])
        whole = 1 << width
        near = [0, 1, 2, 3, 7, 8, 15, 16, 24, 31, 32, 33, 63, 64, 100, 255, 256, 1000, whole // 3, whole // 5]
        near += [whole // 2 - 1, whole // 2 - 2, (1 << width // 2) - 1, 1 << width // 2]
        return np.array([value % whole for one in near for value in (one, whole - 1 - one)], np.uint64), width

    def _near(self, kind: str, count: int, width: int) -> Array:
        if kind in _SIGNED:
            return self.wide(count, kind, 6)
        return self.between(count, -40, 40).astype(np.uint64) & np.uint64((1 << width) - 1)
