"""The expected outputs of a sample at full size, from the reference of the small product that its inputs repeat."""

from collections.abc import Iterator
from dataclasses import dataclass

import numpy as np

from cudal2_agent.contract.records.task import ElementType, GemmTask
from cudal2_agent.sandbox.verification.cases import Case
from cudal2_agent.sandbox.verification.comparison import Comparison, compare_bounded, compare_exact
from cudal2_agent.sandbox.verification.reference import Block, Reference

# Inputs whose reference is that of a small product, although all rows of A and all columns of B differ: row i of A is row
# i mod P of a small matrix times s(i), column j of B is column j mod P times t(j), so that D[i,j] is s(i)·t(j) times the small
# product's. `up` has the factors of B. P is a prime; the factors are signs and, where the case's sums leave room, powers of
# two: exact in every step of a sum. All of them follow from a seed.
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

    def plain(self) -> "OperandLines":
        """The same lines, none of them multiplied."""
        return OperandLines(self.index, np.zeros_like(self.powers), np.zeros_like(self.negative))

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
    unit = np.uint16(_SMALLEST_NORMAL[element])
    size = bits & ~_SIGN
    return np.asarray(np.where(size < unit, size << np.uint16(1), size + unit) | (bits & _SIGN))


PIECE = 2**20  # outputs compared at a time


@dataclass(frozen=True)
class Expected:
    """The reference of one case's inputs, whose rows and columns repeat. Shape: block (rows, columns) that repeat."""

    case: Case
    task: GemmTask
    block: Block
    rows: OperandLines
    columns: OperandLines

    def compare(self, output: np.ndarray, places: np.ndarray) -> Comparison:
        """Some outputs, as one long column, with what they should be. Shape: output (M, N); places: flat."""
        got, gathered = output.reshape(-1)[places, None], Gathered(self, places)
        if self.case.growth is None:
            return compare_exact(np, self.task, got, gathered)
        return compare_bounded(np, self.task, got, gathered, self.case.growth)


class Gathered(Reference):
    """Reference of outputs that were gathered from anywhere, in pieces, as a column."""

    def __init__(self, expected: Expected, places: np.ndarray) -> None:
        self._expected, self._places = expected, places
        self._factors = expected.rows.factors, expected.columns.factors

    def blocks(self) -> Iterator[Block]:
        expected, block = self._expected, self._expected.block
        for start in range(0, len(self._places), PIECE):
            rows, columns = np.divmod(self._places[start : start + PIECE], expected.task.n)
            down, across = self._factors[0][rows, None], self._factors[1][columns, None]
            rows, columns = expected.rows.index[rows], expected.columns.index[columns]
            gated = {}
            if block.up is not None and block.up_norms is not None:
                gated["up"] = block.up[rows, columns, None] * down * across
                gated["up_norms"] = block.up_norms[0, columns, None] * np.abs(across)
            yield Block(
                start=start,
                product=block.product[rows, columns, None] * down * across,
                row_norms=block.row_norms[rows] * np.abs(down),
                column_norms=block.column_norms[0, columns, None] * np.abs(across),
                **gated,
            )
