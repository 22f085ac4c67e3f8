"""The expected outputs of a sample at full size, from the reference of the small product that its inputs repeat."""

from collections.abc import Iterator
from dataclasses import dataclass

import numpy as np

from cudal2_agent.contract.records.task import GemmTask
from cudal2_agent.sandbox.emulator.large.operand_lines import OperandLines
from cudal2_agent.sandbox.verification.cases import Case
from cudal2_agent.sandbox.verification.comparison import Comparison, compare_bounded, compare_exact
from cudal2_agent.sandbox.verification.reference import Block, Reference

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
            yield Block(
                start=start,
                product=block.product[rows, columns, None] * down * across,
                row_norms=block.row_norms[rows] * np.abs(down),
                column_norms=block.column_norms[0, columns, None] * np.abs(across),
            )
