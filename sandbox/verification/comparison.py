"""Output against reference: every element, by row blocks."""

import math
from collections.abc import Iterable
from dataclasses import dataclass, field, replace
from typing import Any

import numpy as np

from cudal2_agent.contract.records.task import ElementType, GemmTask
from cudal2_agent.sandbox.verification.bounds import Growth, accumulation_factor
from cudal2_agent.sandbox.verification.elements import FORMATS, POISON, Array, decode_wide, encode
from cudal2_agent.sandbox.verification.reference import BLOCK_ELEMENTS, Block, Reference
from cudal2_agent.sandbox.verification.wanted import wanted

NEGATIVE_ZERO = 0x8000
INFINITY_BITS = {ElementType.F16: 0x7C00, ElementType.BF16: 0x7F80}
SLACK = 1 + 1e-6


@dataclass
class Comparison:
    """What a comparison found. `worst`: largest error over its bound; `box`: the rows and columns that hold mismatches.

    `unwritten`: mismatches that hold D's poison; `unwritten_nan`: those of them that should be NaN, as the poison is.
    """

    elements: int = 0
    mismatches: int = 0
    unwritten: int = 0
    unwritten_nan: int = 0
    worst: float = 0.0
    error_squares: float = 0.0
    reference_squares: float = 0.0
    finite: int = 0
    first: tuple[int, int, float, float] | None = None
    box: list[int] = field(default_factory=list)

    @property
    def right(self) -> bool:
        return not self.mismatches

    @property
    def in_doubt(self) -> bool:
        """Whether all that is wrong should be NaN and holds the poison."""
        return 0 < self.mismatches == self.unwritten_nan

    @property
    def error_rms(self) -> float:
        return math.sqrt(self.error_squares / self.finite) if self.finite else 0.0

    @property
    def reference_rms(self) -> float:
        return math.sqrt(self.reference_squares / self.finite) if self.finite else 0.0

    def describe(self) -> str:
        """The mismatches in one sentence: how many, where, and the first of them."""
        if self.first is None:
            return ""
        row, column, got, want = self.first
        rows, columns = f"{self.box[0]}-{self.box[1]}", f"{self.box[2]}-{self.box[3]}"
        first = f"first D[{row},{column}] is {got:.9g}, should be {want:.9g}"
        unwritten = f"; {self.unwritten} still hold D's poison: never written, or computed from old D" if self.unwritten else ""
        return f"{self.mismatches} of {self.elements} outputs are wrong, in rows {rows}, columns {columns}; {first}{unwritten}"


def compare_exact(xp: Any, task: GemmTask, output: Array, reference: Reference, *, poison: int | None = POISON) -> Comparison:
    """Bit for bit against the reference rounded once, any NaN for a NaN. Shape: output (M, N) bit patterns.

    With an activation, whose value is not known to the bit, within the bound of `wanted`.

    A sum that is exactly zero may be either zero: its sign depends on the order of the additions, and tensor cores do not
    define it. A sum that only rounds to zero keeps its sign. `poison`: what D held before the run; no written output holds
    it.
    """
    if task.activation is not None:
        return _compare_blocks(xp, task, output, reference.blocks(), 0.0, poison=poison)
    found = Comparison()
    for block in reference.blocks():
        got = output[block.start : block.start + len(block.product)]
        want = encode(xp, block.product, task.element)
        right = got == want
        if bool(right.all()):  # the usual case and the fast one; `encode` makes no poison of a NaN
            found.elements += int(got.size)
            continue
        right |= (block.product == 0) & ((got | xp.uint16(NEGATIVE_ZERO)) == NEGATIVE_ZERO)
        right |= xp.isnan(block.product) & is_nan(xp, task, got)
        _tally(xp, task, found, block, got, right, poison)
    found.worst = math.inf if found.mismatches else 0.0
    return found


def compare_patterns(xp: Any, task: GemmTask, output: Array, wanted: Array) -> Comparison:
    """Bit for bit against the bit patterns of sums; +0 equals -0. Shape: output and wanted (M, N).

    With an activation, against that of the sums, within the bound of `wanted`. Not for a gated task, which has two of each.
    """
    found, rows = Comparison(), max(1, BLOCK_ELEMENTS // task.n)
    if task.activation is not None:
        sums = ((start, decode_wide(xp, wanted[start : start + rows], task.element)) for start in range(0, task.m, rows))
        blocks = (Block(start, values, values[:, :1], values[:1]) for start, values in sums)
        return _compare_blocks(xp, task, output, blocks, 0.0)
    for start in range(0, task.m, rows):
        got, want = (bits[start : start + rows] for bits in (output, wanted))
        right = (got == want) | (((got | want) & xp.uint16(0x7FFF)) == 0)
        if bool(right.all()):
            found.elements += int(got.size)
            continue
        values = decode_wide(xp, want, task.element)
        _tally(xp, task, found, Block(start, values, values[:, :1], values[:1]), got, right, None)
    found.worst = math.inf if found.mismatches else 0.0
    return found


def compare_bounded(
    xp: Any,
    task: GemmTask,
    output: Array,
    reference: Reference,
    growth: Growth,
    slack: float = 1.0,
    *,
    poison: int | None = POISON,
) -> Comparison:
    """Within `slack` times the bound of `bounds`, infinities and NaNs where the reference has them.

    A result whose bound straddles the overflow threshold may be either the infinity or a finite number. `poison`: as in
    `compare_exact`.
    """
    return _compare_blocks(xp, task, output, reference.blocks(), accumulation_factor(task, growth), slack, poison=poison)


def _compare_blocks(
    xp: Any,
    task: GemmTask,
    output: Array,
    blocks: Iterable[Block],
    factor: float,
    slack: float = 1.0,
    *,
    poison: int | None = None,
) -> Comparison:
    """`factor`: of the norms, by which sums may be wrong."""
    found = Comparison()
    with np.errstate(invalid="ignore", over="ignore"):
        for block in blocks:
            _compare_block(xp, task, found, output, block, factor, slack, poison)
    return found


def _compare_block(
    xp: Any, task: GemmTask, found: Comparison, output: Array, block: Block, factor: float, slack: float, poison: int | None
) -> None:
    form, right = FORMATS[task.element], wanted(xp, task, block, factor)
    got_bits = output[block.start : block.start + len(block.product)]
    got, want = decode_wide(xp, got_bits, task.element), right.values
    bound = form.roundoff * xp.abs(want) + form.tiny / 2 + right.error
    bound = xp.where(xp.isfinite(want), bound * SLACK, 0.0)
    magnitude = xp.abs(want)
    may_overflow = magnitude + slack * bound >= form.overflow
    must_overflow = magnitude - slack * bound >= form.overflow
    error = xp.abs(got - want)
    comparable = xp.isfinite(got) & xp.isfinite(want) & ~must_overflow
    right_number = comparable & (error <= slack * bound)
    right_infinity = xp.isinf(got) & may_overflow & (xp.sign(got) == xp.sign(want))
    correct = xp.where(xp.isnan(want), xp.isnan(got), right_number | right_infinity)
    if task.activation is not None:
        correct |= right.allows(xp, got)
    ratio = xp.where(comparable, error / xp.where(bound > 0, bound, 1.0), 0.0)
    found.worst = max(found.worst, float(ratio.max()))
    found.error_squares += float(xp.where(comparable, error * error, 0.0).sum())
    found.reference_squares += float(xp.where(comparable, want * want, 0.0).sum())
    found.finite += int(comparable.sum())
    _tally(xp, task, found, replace(block, product=want), got_bits, correct, poison)


def near_wanted(xp: Any, task: GemmTask, bits: Array, block: Block) -> Array:
    """Which outputs are right where the sums are finite and exact. Shape: bits (rows, N)."""
    right, form = wanted(xp, task, block, 0.0), FORMATS[task.element]
    bound = form.roundoff * xp.abs(right.values) + form.tiny / 2 + right.error
    return xp.abs(decode_wide(xp, bits, task.element) - right.values) <= bound * SLACK


def is_nan(xp: Any, task: GemmTask, bits: Array) -> Array:
    """Which bit patterns are NaNs."""
    return (bits & xp.uint16(0x7FFF)) > xp.uint16(INFINITY_BITS[task.element])


def _tally(xp: Any, task: GemmTask, found: Comparison, block: Block, got: Array, right: Array, poison: int | None) -> None:
    """Count a block's mismatches and note where they lie. An element that holds D's poison is always a mismatch."""
    found.elements += int(got.size)
    kept = got == poison if poison is not None else xp.zeros(got.shape, dtype=bool)
    wrong = ~right | kept
    count = int(wrong.sum())
    if not count:
        return
    found.mismatches += count
    found.unwritten += int(kept.sum())
    found.unwritten_nan += int((kept & xp.isnan(block.product)).sum())
    rows, columns = xp.flatnonzero(wrong.any(axis=1)), xp.flatnonzero(wrong.any(axis=0))
    top, bottom = block.start + int(rows[0]), block.start + int(rows[-1])
    left, right = int(columns[0]), int(columns[-1])
    if found.first is None:
        row = int(rows[0])
        column = int(xp.flatnonzero(wrong[row])[0])
        value = float(decode_wide(xp, got[row, column : column + 1], task.element)[0])
        found.first = (block.start + row, column, value, float(block.product[row, column]))
        found.box = [top, bottom, left, right]
    else:
        found.box = [found.box[0], bottom, min(found.box[2], left), max(found.box[3], right)]
