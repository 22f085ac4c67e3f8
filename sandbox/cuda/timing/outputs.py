"""Outputs of timed launches, judged: all of them by a projection, some of them element by element.

A projection multiplies D with a vector of random signs, and A with the product of B and the same vector. Both are equal
except for rounding. It checks every output of every launch at the cost of reading them once.
Source: Freivalds, Probabilistic Machines Can Use Less Running Time (IFIP 1977), with a tolerance for rounding.

Covered: a row of D that lacks a share of K or of N, was kept from other operands, or was never written.
Not covered: a few wrong elements in a row of bf16 or of f16 accumulation, where rounding is as large; those show only in the
outputs that are drawn for a full comparison.
"""

import math
import random
from collections.abc import Sequence
from typing import Any

import cupy
import numpy as np

from cudal2_agent.contract.records.task import ElementType, GemmTask
from cudal2_agent.sandbox.cuda.timing.operand_pools import OperandPools, Ring, matrices
from cudal2_agent.sandbox.cuda.timing.trusted_timing import TrustedTiming
from cudal2_agent.sandbox.verification.bounds import LAMBDA, Growth, accumulation_factor
from cudal2_agent.sandbox.verification.comparison import Comparison, compare_bounded
from cudal2_agent.sandbox.verification.elements import FORMATS
from cudal2_agent.sandbox.verification.reference import Reference

DEVIATIONS = 12.0
SLACK = 2.0  # of a verified kernel's bound


def tolerance(task: GemmTask) -> float:
    """Maximum distance of the two projections of a row: DEVIATIONS times the spread of rounding errors of random signs.

    Rows of Gaussian A and B have |a| |B| = K sqrt(N), their outputs a size of sqrt(K).
    """
    form = FORMATS[task.element]
    relative = form.roundoff / math.sqrt(task.k) + accumulation_factor(task, Growth.WALK) / LAMBDA
    return DEVIATIONS * task.k * math.sqrt(task.n) * relative + task.n * form.tiny


class OutputJudge:
    """Judges the outputs that one task's launches left in a ring."""

    def __init__(self, task: GemmTask, pools: OperandPools, ring: Ring, trusted: TrustedTiming) -> None:
        self._task, self._pools, self._trusted = task, pools, trusted
        self._outputs = matrices(ring.memory, ring.slots, task.m, task.n)
        self._bf16 = task.element is ElementType.BF16
        self._tolerance = tolerance(task)

    def project(self, pairs: Sequence[tuple[int, int]], draw: random.Random) -> str | None:
        """The first fault in the outputs of launches on these pairs, slot by slot; None where there is none."""
        signs = self._signs(draw)
        a, b = (cupy.asarray(np.array(indices, dtype=np.uint32)) for indices in zip(*pairs, strict=True))
        slots = cupy.arange(len(pairs), dtype=cupy.uint32)
        halfway = self._trusted.project(self._pools.b_nn, signs, b, None, bf16=self._bf16)
        wanted = self._trusted.project(self._pools.a, halfway, a, slots, bf16=self._bf16)
        got = self._trusted.project(self._outputs[: len(pairs)], signs, None, None, bf16=self._bf16)
        apart, first = self._trusted.apart(got, wanted, self._tolerance)
        if not apart:
            return None
        slot, row = divmod(first, self._task.m)
        return (
            f"{apart} of {got.size} rows of the sample's {len(pairs)} outputs are not the matrix products of their operands; "
            f"the first is row {row} of launch {slot}"
        )

    def compare(self, slot: int, pair: tuple[int, int]) -> Comparison:
        """One output against the float64 product of regenerated operands, element by element."""
        reference = Reference(cupy, self._task, self._pools.made_again(pair), keep=False)
        return compare_bounded(cupy, self._task, self._outputs[slot], reference, Growth.WALK, slack=SLACK)

    def _signs(self, draw: random.Random) -> Any:
        """Shape: (1, N)."""
        random_bits = np.random.default_rng(draw.getrandbits(64)).integers(0, 2, self._task.n)
        return cupy.asarray((1 - 2 * random_bits).astype(np.float32))[None]
