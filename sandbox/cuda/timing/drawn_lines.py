"""A drawn row and a drawn column of each output, compared with the activation of their sums, times those of `up` if gated.

No projection passes through an activation, so that outputs of a task with one are compared element by element. The sums of a
column are A times that column of B, those of a row are B's transpose times that row of A: what a projection reads, and no more.
A sample has `LEAST_DRAWS` rows and columns at least; of few launches several each. The seed is drawn after the launches.

Covered: a launch that was left out, kept from other operands or without its activation, in every sample. A launch with a share
s of wrong outputs, wherever they lie, is found by one draw with a probability of at least 2 sqrt(s) - s. For a hundredth that
is 0.2, and 0.999 with 32 draws. A kernel gains nothing by less.
Not covered: a few wrong outputs. They show in the outputs that are drawn for a full comparison.
"""

import math
import random
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any

import cupy
import numpy as np

from cudal2_agent.contract.records.task import ElementType, GemmTask
from cudal2_agent.sandbox.cuda.timing.operand_pools import OperandPools
from cudal2_agent.sandbox.cuda.timing.trusted_timing import Matrices, TrustedTiming
from cudal2_agent.sandbox.verification.bounds import Growth, accumulation_factor
from cudal2_agent.sandbox.verification.comparison import Comparison, compare_bounded
from cudal2_agent.sandbox.verification.elements import FORMATS, decode
from cudal2_agent.sandbox.verification.inputs import normal_scale, weight_scale
from cudal2_agent.sandbox.verification.reference import Block, Reference

LEAST_DRAWS = 32
PARTIAL = 8.0  # size of what a library rounds within a sum, as a multiple of a sum's typical size
GATHERED = 2**24  # elements of rows and columns that are gathered at a time
COMPARED = 2**22  # outputs that are compared at a time


@dataclass(frozen=True)
class DrawnPlaces:
    """One row and one column of some launches. Shape: each (draws,), int64, on the host. `launch`: counted from 0."""

    launch: np.ndarray
    a: np.ndarray
    b: np.ndarray
    slot: np.ndarray
    row: np.ndarray
    column: np.ndarray

    @classmethod
    def of(cls, task: GemmTask, a: np.ndarray, b: np.ndarray, slots: np.ndarray, draw: random.Random) -> "DrawnPlaces":
        """Those of launches, each as often as the others. Shape: a, b and slots (launches,)."""
        launch = np.tile(np.arange(len(a)), -(-LEAST_DRAWS // len(a)))
        drawn = np.random.default_rng(draw.getrandbits(64))
        row, column = (drawn.integers(size, size=len(launch)) for size in (task.m, task.n))
        a, b, slots = (numbers[launch].astype(np.int64) for numbers in (a, b, slots))
        return cls(launch, a, b, slots, row, column)

    def place(self, task: GemmTask, output: int) -> tuple[int, int, int]:
        """Launch, row and column of an output: those of the drawn columns are counted first, then those of the rows."""
        if output < len(self.launch) * task.m:
            which, row = divmod(output, task.m)
            return int(self.launch[which]), row, int(self.column[which])
        which, column = divmod(output - len(self.launch) * task.m, task.n)
        return int(self.launch[which]), int(self.row[which]), column


class DrawnLines:
    """Compares rows and columns of the outputs of one task's launches."""

    def __init__(self, task: GemmTask, pools: OperandPools, outputs: Matrices, trusted: TrustedTiming) -> None:
        self._task, self._pools, self._outputs, self._trusted = task, pools, outputs, trusted
        self._bf16 = task.element is ElementType.BF16

    def compare(self, draws: DrawnPlaces, slack: float, *, rounded_sums: bool) -> Comparison:
        """Each output as a row of its own. `rounded_sums`: sums and their parts may be rounded to elements, as libraries do."""
        task, each = self._task, max(1, GATHERED // (2 * self._task.k + self._task.m + self._task.n))
        parts = [slice(start, start + each) for start in range(0, len(draws.launch), each)]
        lines = [self._column(draws, part) for part in parts] + [self._row(draws, part) for part in parts]
        got, *sums = (cupy.concatenate([line[which].reshape(-1) for line in lines]) for which in range(len(lines[0])))
        return compare_bounded(cupy, task, got[:, None], _Sums(task, sums, rounded_sums), Growth.WALK, slack)

    def _column(self, draws: DrawnPlaces, part: slice) -> tuple[Any, ...]:
        """Outputs, their sums, and those of `up` if gated. Shape: each (draws, M)."""
        pools, a, b, column = self._pools, draws.a[part], _upright(draws.b[part]), _upright(draws.column[part])
        sums = []
        for weights in self._weights():
            factors = self._decoded(weights.at(b, column, cupy.arange(self._task.k)))
            sums.append(self._trusted.project(pools.a, factors, *_chosen(a), bf16=self._bf16))
        if pools.bias is not None:
            sums[0] = sums[0] + self._decoded(pools.bias.at(b, 0, column))
        return self._outputs.at(_upright(draws.slot[part]), cupy.arange(self._task.m), column), *sums

    def _row(self, draws: DrawnPlaces, part: slice) -> tuple[Any, ...]:
        """Outputs, their sums, and those of `up` if gated. Shape: each (draws, N)."""
        pools, b, row, columns = self._pools, draws.b[part], _upright(draws.row[part]), cupy.arange(self._task.n)
        factors = self._decoded(pools.a.at(_upright(draws.a[part]), row, cupy.arange(self._task.k)))
        sums = [self._trusted.project(weights, factors, *_chosen(b), bf16=self._bf16) for weights in self._weights()]
        if pools.bias is not None:
            sums[0] = sums[0] + self._decoded(pools.bias.at(_upright(b), 0, columns))
        return self._outputs.at(_upright(draws.slot[part]), row, columns), *sums

    def _weights(self) -> list[Matrices]:
        """B, and `up` if gated, by columns."""
        pools = self._pools
        return [pools.b_tn] if pools.up_tn is None else [pools.b_tn, pools.up_tn]

    def _decoded(self, bits: Any) -> Any:
        return decode(cupy, bits, self._task.element)


class _Sums(Reference):
    """Sums in f32 that were computed elsewhere, one a row, and those of `up` if gated. Shape: sums, each (outputs,).

    Their norms are those of typical rows and columns. What may be `rounded` counts as if norms were that much larger.
    """

    def __init__(self, task: GemmTask, sums: Sequence[Any], rounded: bool) -> None:
        self._form, self._sums = FORMATS[task.element], sums
        self._norms = normal_scale(task.k) * weight_scale(task) * task.k * (math.sqrt(2) if task.bias else 1.0)
        self._part = PARTIAL * self._norms / math.sqrt(task.k)
        self._rounded = 1 / accumulation_factor(task, Growth.WALK) if rounded else 0.0

    def blocks(self) -> Iterator[Block]:
        for start in range(0, len(self._sums[0]), COMPARED):
            sums = [each[start : start + COMPARED, None].astype(cupy.float64) for each in self._sums]
            norms = [self._of(each) for each in sums]
            yield Block(start, sums[0], cupy.ones((1, 1)), norms[0], *sums[1:], *norms[1:])

    def _of(self, sums: Any) -> Any:
        rounding = self._form.roundoff * (abs(sums) + self._part) + self._form.tiny / 2
        return self._norms + self._rounded * rounding


def _upright(numbers: np.ndarray) -> Any:
    """Shape: (draws,) in, (draws, 1) on the device out."""
    return cupy.asarray(numbers)[:, None]


def _chosen(matrices: np.ndarray) -> tuple[Any, Any]:
    """The matrix and the vector of each draw, for `project`."""
    return cupy.asarray(matrices.astype(np.uint32)), cupy.arange(len(matrices), dtype=np.uint32)
