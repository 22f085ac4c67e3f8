"""Half-precision elements as bit patterns, so that numpy and cupy treat f16 and bf16 alike."""

import random
from dataclasses import dataclass
from typing import Any

import numpy as np

from cudal2_agent.contract.records.task import ElementType

Array = Any  # numpy.ndarray or cupy.ndarray; neither is a base of the other


# Every byte 0xFF: a NaN in both formats that no arithmetic produces. It distinguishes an unwritten output from a computed NaN.
POISON = 0xFFFF

# NaNs in f16 and in bf16; two of them form a NaN in f32. Processors generate none of these.
_MADE_BY_PROCESSORS = frozenset({0x7FC0, 0xFFC0, 0x7FFF, 0xFFFF})
POISONS = tuple(sorted({*range(0x7F81, 0x8000), *range(0xFF81, 0x10000)} - _MADE_BY_PROCESSORS))


_BF16_NORMAL = 2.0**-126  # the smallest normal number, of f32 too


class Poisons:
    """The patterns that fill D before one run after another: drawn from a seed, never the same twice in a row."""

    def __init__(self, seed: int) -> None:
        self._random = random.Random(f"poison/{seed}")
        self._last = POISON

    def next(self) -> int:
        self._last = self._random.choice([poison for poison in POISONS if poison != self._last])
        return self._last


@dataclass(frozen=True)
class Format:
    """The limits of a format.

    `roundoff`: relative error of rounding to nearest. `overflow`: magnitudes from here round to infinity. `tiny`: the
    smallest subnormal.
    """

    roundoff: float
    overflow: float
    tiny: float


FORMATS: dict[ElementType, Format] = {
    ElementType.F16: Format(roundoff=2.0**-11, overflow=65520.0, tiny=2.0**-24),
    ElementType.BF16: Format(roundoff=2.0**-8, overflow=(2 - 2.0**-8) * 2.0**127, tiny=2.0**-133),
}


def encode(xp: Any, values: Array, element: ElementType) -> Array:
    """Bit patterns of values rounded to nearest even, by way of f32. Shape: any in, the same in uint16 out.

    Subnormals of bf16 are made from f64 values only: cupy's kernels flush those of f32.
    """
    values = xp.ascontiguousarray(values)
    with np.errstate(over="ignore", invalid="ignore"):
        single = values.astype(xp.float32)
        if element is ElementType.F16:
            return single.astype(xp.float16).view(xp.uint16)
    bits = single.view(xp.uint32)
    rounded = (bits + (xp.uint32(0x7FFF) + ((bits >> xp.uint32(16)) & xp.uint32(1)))) >> xp.uint32(16)
    patterns = xp.where(xp.isnan(single), xp.uint32(0x7FC0), rounded).astype(xp.uint16)
    if values.dtype != np.float64:
        return patterns
    with np.errstate(invalid="ignore"):
        magnitude = xp.abs(values)
        small = xp.where(magnitude < _BF16_NORMAL, magnitude, 0.0)
    steps = xp.rint(small / FORMATS[element].tiny).astype(xp.uint16) | (xp.signbit(values).astype(xp.uint16) << xp.uint16(15))
    return xp.where(magnitude < _BF16_NORMAL, steps, patterns)


def decode(xp: Any, bits: Array, element: ElementType) -> Array:
    """Values of bit patterns in f32, exact for both formats. Shape: any in uint16, the same in float32 out."""
    bits = xp.ascontiguousarray(bits)
    if element is ElementType.F16:
        return bits.view(xp.float16).astype(xp.float32)
    return (bits.astype(xp.uint32) << xp.uint32(16)).view(xp.float32)


def decode_wide(xp: Any, bits: Array, element: ElementType) -> Array:
    """As `decode`, in float64; exact where arithmetic in f32 flushes subnormals, as cupy's does."""
    values = decode(xp, bits, element).astype(xp.float64)
    if element is ElementType.F16:
        return values
    steps = (bits & xp.uint16(0x7F)).astype(xp.float64) * FORMATS[element].tiny
    small = xp.where(bits & xp.uint16(0x8000), -steps, steps)
    return xp.where((bits & xp.uint16(0x7F80)) == 0, small, values)
