"""Inputs whose reference is that of a small product, although all rows of A and all columns of B differ.

Row i of A is row i mod P of a small matrix times s(i), column j of B is column j mod P times t(j), so that D[i,j] is s(i)·t(j)
times the small product's. P is a prime; the factors are signs and, where the case's sums leave room, powers of two: exact in
every step of a sum. All of them follow from a seed.
"""

from dataclasses import dataclass

import numpy as np

from cudal2_agent.contract.records.task import ElementType
from cudal2_agent.sandbox.emulator.kernel import ELEMENT_BYTES

PERIODS = (223, 227, 229, 233, 239, 241, 251)
_SIGN = np.uint16(0x8000)
_SMALLEST_NORMAL = {ElementType.F16: 0x0400, ElementType.BF16: 0x0080}


@dataclass(frozen=True)
class OperandLines:
    """The lines of an operand. `index`: of the small operand's line. Shape: index, powers, negative (lines,)."""

    index: np.ndarray
    powers: np.ndarray
    negative: np.ndarray

    @classmethod
    def drawn(cls, source: np.random.Generator, count: int, period: int, most_power: int) -> "OperandLines":
        """`most_power`: the largest power of two that a line may be multiplied by, as its exponent."""
        powers, negative = source.integers(0, most_power + 1, count), source.integers(0, 2, count).astype(bool)
        return cls(np.arange(count) % min(period, count), powers, negative)

    @property
    def factors(self) -> np.ndarray:
        return np.where(self.negative, -1.0, 1.0) * 2.0**self.powers

    def spread(self, small: np.ndarray, element: ElementType) -> np.ndarray:
        """The whole operand. Shape: small (period, K) bit patterns in, (lines, K) out."""
        scaled = [small]
        for _ in range(int(self.powers.max(initial=0))):
            scaled.append(_doubled(scaled[-1], element))
        variants = np.concatenate([*scaled, *(each ^ _SIGN for each in scaled)])
        kind = self.powers + len(scaled) * self.negative
        return np.asarray(variants[kind * len(small) + self.index])


def _doubled(bits: np.ndarray, element: ElementType) -> np.ndarray:
    """Twice the numbers, exactly; those of the largest binade must not occur."""
    assert bits.itemsize == ELEMENT_BYTES
    unit = np.uint16(_SMALLEST_NORMAL[element])
    size = bits & ~_SIGN
    return np.asarray(np.where(size < unit, size << np.uint16(1), size + unit) | (bits & _SIGN))
