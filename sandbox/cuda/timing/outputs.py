"""Outputs of timed launches, judged: all of them by a projection, some of them element by element.

A projection multiplies D with a vector of random signs, and A with the product of B and the same vector, to which that of a
bias is added. Both are equal except for rounding. It checks every output of every launch at the cost of reading them once.
Source: Freivalds, Probabilistic Machines Can Use Less Running Time (IFIP 1977), with a tolerance for rounding.

Outputs of a task with an activation are compared in drawn rows and columns instead (`drawn_lines.py`).

Covered: a row of D that lacks a share of K or of N, was kept from other operands, or was never written.
Not covered: a few wrong elements in a row of bf16 or of f16 accumulation, where rounding is as large; those show only in the
outputs that are drawn for a full comparison.
"""

import math
import random
from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any, NamedTuple

import cupy
import numpy as np

from cudal2_agent.contract.records.task import ElementType, GemmTask
from cudal2_agent.contract.settings.options import VerifyOptions
from cudal2_agent.sandbox.cuda.timing.drawn_lines import DrawnLines, DrawnPlaces
from cudal2_agent.sandbox.cuda.timing.operand_pools import OperandPools, Ring
from cudal2_agent.sandbox.cuda.timing.sample_plan import TimedLaunch
from cudal2_agent.sandbox.cuda.timing.trusted_timing import Matrices, TrustedTiming
from cudal2_agent.sandbox.verification.bounds import LAMBDA, Growth, accumulation_factor, effective_count, rounding_floor
from cudal2_agent.sandbox.verification.comparison import Comparison, compare_bounded
from cudal2_agent.sandbox.verification.elements import FORMATS
from cudal2_agent.sandbox.verification.inputs import normal_scale
from cudal2_agent.sandbox.verification.reference import Reference

DEVIATIONS = 12.0
SLACK = 2.0  # of a verified kernel's bound
SCATTER = 6.0  # standard deviations of an RMS


def tolerance(task: GemmTask) -> float:
    """Maximum distance of the two projections of a row: DEVIATIONS times the spread of rounding errors of random signs.

    Rows of Gaussian A and B have |a| |B| = K sqrt(N), their outputs a size of sqrt(K); both times the square of their scale.
    With a bias of that size outputs are sqrt(2) times as large.
    """
    form = FORMATS[task.element]
    relative = form.roundoff / math.sqrt(task.k) + accumulation_factor(task, Growth.WALK) / LAMBDA
    larger = math.sqrt(2) if task.bias else 1.0
    return DEVIATIONS * larger * normal_scale(task.k) ** 2 * task.k * math.sqrt(task.n) * relative + task.n * form.tiny


def error_limit(task: GemmTask, judged: "OutputJudgement", baseline_rms: float) -> float:
    """Maximum RMS error of a sample: twice the baselines' in the same round, or what honest rounding gives.

    The RMS of a few rows scatters around that of all, hence the allowance.
    """
    floor = rounding_floor(task, judged.size_rms, judged.rows * task.n)
    scatter = SCATTER / math.sqrt(2 * effective_count(task, judged.rows))
    return max(VerifyOptions().error_ratio * baseline_rms, floor) * (1 + scatter)


@dataclass(frozen=True)
class OutputJudgement:
    """The outputs of some launches, judged. `fault`: the first one in words, None where there is none.

    `error_rms`: estimated root mean square error of an output; `size_rms`: that of the outputs themselves. `rows`: how many
    rows were projected, or outputs compared.
    """

    fault: str | None
    error_rms: float
    size_rms: float
    rows: int


class OutputJudge:
    """Judges the outputs that one task's launches left in a ring."""

    def __init__(self, task: GemmTask, pools: OperandPools, ring: Ring, trusted: TrustedTiming) -> None:
        self._task, self._pools, self._trusted = task, pools, trusted
        self._outputs = Matrices(ring.memory, ring.starts, task.m, task.n)
        self._bf16 = task.element is ElementType.BF16
        self._tolerance = tolerance(task)
        self._indexed: tuple[Sequence[TimedLaunch], _Indices] | None = None  # of the launches judged last, on the host

    def project(self, launches: Sequence[TimedLaunch], draw: random.Random, *, library: bool = False) -> OutputJudgement:
        """The outputs of these launches, a sequence that stays as it is.

        `library`: outputs of a library, whose sums may be rounded to elements before an activation, in parts of K too.
        """
        if self._indexed is None or self._indexed[0] is not launches:
            self._indexed = launches, _Indices.of(launches)
        if self._task.activation is not None:
            return self._in_lines(self._indexed[1], draw, library)
        signs = self._signs(draw)
        read, a, of_launch, slots = (cupy.asarray(numbers) for numbers in self._indexed[1])
        halfway = self._trusted.project(self._pools.b_nn, signs, read, None, bf16=self._bf16)
        wanted = self._trusted.project(self._pools.a, halfway, a, of_launch, bf16=self._bf16)
        if self._pools.bias is not None:
            wanted += self._trusted.project(self._pools.bias, signs, read, None, bf16=self._bf16)[of_launch]
        got = self._trusted.project(self._outputs, signs, slots, None, bf16=self._bf16)
        found = self._trusted.apart(got, wanted, self._tolerance)
        rows = int(got.size)
        per_output = 1 / math.sqrt(rows * self._task.n)  # a projection adds up N errors of random signs
        judged = OutputJudgement(None, per_output * math.sqrt(found.distances), per_output * math.sqrt(found.sizes), rows)
        if not found.apart:
            return judged
        launch, row = divmod(found.first, self._task.m)
        fault = (
            f"{found.apart} of {rows} rows of {len(launches)} outputs are not the matrix products of their operands; "
            f"the first is row {row} of launch {launch}"
        )
        return replace(judged, fault=fault)

    def compare(self, launch: TimedLaunch) -> Comparison:
        """One output against the float64 product of regenerated operands, element by element."""
        reference = Reference(cupy, self._task, self._pools.made_again(launch[:2]), keep=False)
        return compare_bounded(cupy, self._task, self._outputs[launch.slot], reference, Growth.WALK, slack=SLACK)

    def _in_lines(self, indices: "_Indices", draw: random.Random, library: bool) -> OutputJudgement:
        task, outputs = self._task, self._outputs
        draws = DrawnPlaces.of(task, indices.a, indices.read[indices.of_launch], indices.slots, draw)
        found = DrawnLines(task, self._pools, outputs, self._trusted).compare(draws, SLACK, rounded_sums=library)
        judged = OutputJudgement(None, found.error_rms, found.reference_rms, found.elements)
        if found.first is None:
            return judged
        place, _, got, want = found.first
        launch, row, column = draws.place(task, place)
        fault = (
            f"{found.mismatches} of {found.elements} outputs in {len(draws.launch)} drawn rows and columns of {len(indices.a)} "
            f"launches are not {task.formula} of their operands; "
            f"the first is D[{row},{column}] of launch {launch}: {got:.9g}, should be {want:.9g}"
        )
        return replace(judged, fault=fault)

    def _signs(self, draw: random.Random) -> Any:
        """Shape: (1, N)."""
        random_bits = np.random.default_rng(draw.getrandbits(64)).integers(0, 2, self._task.n)
        return cupy.asarray((1 - 2 * random_bits).astype(np.float32))[None]


class _Indices(NamedTuple):
    """Launches as lists of numbers: each B that is read, once; A, the place of its B among `read`, and the slot of each launch.

    Thousands of launches take a millisecond, so a lane's are kept. They stay on the host, out of reach of what they judge.
    Shape: read (matrices,), the others (launches,), uint32.
    """

    read: np.ndarray
    a: np.ndarray
    of_launch: np.ndarray
    slots: np.ndarray

    @classmethod
    def of(cls, launches: Sequence[TimedLaunch]) -> "_Indices":
        a, b, slots = np.array(launches, dtype=np.uint32).T
        read, of_launch = np.unique(b, return_inverse=True)
        return cls(*(np.ascontiguousarray(numbers, dtype=np.uint32) for numbers in (read, a, of_launch, slots)))
