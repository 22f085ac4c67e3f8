"""Matrix operands for golden products, and the bound on how far tensor cores may lie from the exact result.

The sets: `integers`, whose sums are exact in any order and every accumulator; `normals`; `cancelling`, large terms that
cancel beside small ones; `sparse`, a few terms far apart, which shows how terms are aligned; `edges`, any bits.
"""

from typing import Any

import numpy as np

from tests.sandbox.emulator.golden.draw import Draw

Array = np.ndarray[Any, Any]
SETS = ("integers", "normals", "cancelling", "sparse", "edges")


def operand(draw: Draw, count: int, kind: str, choice: str) -> Array:
    """Bits of `count` elements of f16, bf16 or f32."""
    if choice == "edges":
        return draw.column(kind, count)[np.argsort(draw.words(count), kind="stable")]
    if choice == "integers":
        return to_bits(draw.between(count, -4, 4).astype(np.float64), kind)
    if choice == "normals":
        return to_bits(draw.normals(count), kind)
    if choice == "cancelling":
        large = draw.below(count, 4) == 0
        return to_bits(draw.normals(count) * np.where(large, 2.0**6, 2.0**-4), kind)
    empty = draw.below(count, 3) != 0
    return np.where(empty, 0, draw.wide(count, kind, 6)).astype(draw.wide(1, kind, 1).dtype)


def to_bits(values: Array, kind: str) -> Array:
    if kind == "f16":
        return values.astype(np.float16).view(np.uint16)
    wide = values.astype(np.float32).view(np.uint32)
    return (wide + 0x7FFF + (wide >> 16 & 1) >> 16).astype(np.uint16) if kind == "bf16" else wide


def to_values(bits: Array, kind: str) -> Array:
    """Float64 of bit patterns."""
    with np.errstate(invalid="ignore"):
        if kind == "bf16":
            return (bits.astype(np.uint32) << np.uint32(16)).view(np.float32).astype(np.float64)
        return bits.view(np.float16 if kind == "f16" else np.float32).astype(np.float64)


def bound(magnitude: Array, accumulator: str, steps: int) -> Array:
    """The bound on a result's distance from the exact one; `magnitude`: the sum of all terms' magnitudes.

    f32: terms are aligned and cut off a little below the 24 bits of the largest, once a step, and the result is cut to 24
    bits. f16: besides, every step rounds to 11 bits. It also bounds how far an emulator that adds in the order of k and rounds
    to nearest may lie from the recorded result. Used of it by what was recorded on an H200: in f32 0.46 from exact to recorded
    and 0.66 from recorded to emulated, in f16 0.25 and 0.31.
    """
    cut = magnitude * 2.0**-21 * steps
    return cut + (magnitude * 2.0**-10 * steps + 2.0**-24 if accumulator == "f16" else 2.0**-126)


def product(a: Array, b: Array, c: Array) -> tuple[Array, Array]:
    """A·B + C and the sum of magnitudes, in float64."""
    with np.errstate(all="ignore"):
        return a @ b + c, np.abs(a) @ np.abs(b) + np.abs(c)
