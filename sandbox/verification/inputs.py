"""The inputs of every test: what each is made of, and why a wrong kernel cannot get past it."""

import math
from dataclasses import dataclass

from contract.task import ElementType, GemmTask
from sandbox.verification.elements import FORMATS, Array, encode
from sandbox.verification.source import Source

EXPECTED_ONES = 32
WIDE_PAIRS = 1024
SPECIAL_LINES = 4


@dataclass(frozen=True)
class Inputs:
    """Operands as bit patterns. Shape: a (M, K), b (K, N), whatever the task's layout in memory."""

    a: Array
    b: Array


def _encoded(source: Source, task: GemmTask, a: Array, b: Array) -> Inputs:
    return Inputs(encode(source.xp, a, task.element), encode(source.xp, b, task.element))


def _shapes(task: GemmTask) -> tuple[tuple[int, int], tuple[int, int]]:
    return (task.m, task.k), (task.k, task.n)


def _density(k: int) -> float:
    """Probability of a one in A and in B that leaves about EXPECTED_ONES products of ones in a sum over K."""
    return min(0.5, math.sqrt(EXPECTED_ONES / k))


def _moderate(k: int) -> float:
    """A power of two that keeps sums over K of products of order one within some thousands."""
    return 2.0 ** -max(0, math.ceil(math.log2(k / 4096) / 2))


def sparse_ones(source: Source, task: GemmTask) -> Inputs:
    """Zeros and ones. Every partial sum is a small whole number, exact in any order and in every accumulator."""
    left, right = _shapes(task)
    density = _density(task.k)
    return _encoded(source, task, source.hits(left, density), source.hits(right, density))


def wide(source: Source, task: GemmTask) -> Inputs:
    """Odd products past 2048 that cancel between columns of K paired at random, leaving a small residue.

    Every partial sum is a whole number under 2^23, so an f32 accumulator holds it in any order of K and under any split.
    A narrower one must hold odd numbers past 2048 after its first instruction or its first product whichever way it
    walks K, because the partner that cancels them lies at a place it cannot foresee.
    """
    xp, (left, right) = source.xp, _shapes(task)
    a, b = xp.zeros(left, dtype=xp.float32), xp.zeros(right, dtype=xp.float32)
    plus, minus = source.pairs(task.k, WIDE_PAIRS)
    pairs = len(plus)
    values = source.odd((task.m, pairs), 33, 63)
    residue = source.hits((task.m, pairs), min(0.5, 8 / max(pairs, 1))) * source.signs((task.m, pairs))
    a[:, plus], a[:, minus] = values, residue - values
    weights = source.odd((pairs, task.n), 33, 63)
    b[plus, :], b[minus, :] = weights, weights
    return _encoded(source, task, a, b)


def gaussian(source: Source, task: GemmTask) -> Inputs:
    left, right = _shapes(task)
    scale = _moderate(task.k)
    return _encoded(source, task, source.normal(left) * scale, source.normal(right) * scale)


def uniform(source: Source, task: GemmTask) -> Inputs:
    """Positive values: sums grow steadily, where an accumulator that truncates or stagnates drifts."""
    left, right = _shapes(task)
    scale = _moderate(task.k)
    return _encoded(source, task, source.uniform(left) * scale, source.uniform(right) * scale)


def cancellation(source: Source, task: GemmTask) -> Inputs:
    """Pairs along K that cancel but for rounding: the result is far smaller than the terms it is made of."""
    xp, (left, right) = source.xp, _shapes(task)
    a, b = source.normal(left), source.normal(right)
    plus, minus = source.pairs(task.k, task.k)
    a[:, minus] = -a[:, plus]
    b[minus, :] = b[plus, :] * (1 + xp.float32(2**-7) * source.normal((len(plus), task.n)))
    scale = _moderate(task.k)
    return _encoded(source, task, a * scale, b * scale)


def large(source: Source, task: GemmTask) -> Inputs:
    """Rows whose results are a tenth, a half and three times the largest number, of both signs: the last must overflow."""
    xp, (left, right) = source.xp, _shapes(task)
    targets = source.xp.asarray(source.host.choice([0.1, 0.5, 3.0], size=(task.m, 1)), dtype=xp.float32)
    mean_product = 0.75**2
    scale = math.sqrt(3.0 / (mean_product * task.k)) * math.sqrt(FORMATS[task.element].overflow)
    a = (0.5 + 0.5 * source.uniform(left)) * (targets / 3) * source.signs((task.m, 1)) * xp.float32(scale)
    return _encoded(source, task, a, (0.5 + 0.5 * source.uniform(right)) * xp.float32(scale))


def subnormal(source: Source, task: GemmTask) -> Inputs:
    """Small multiples of the smallest subnormal: exact where subnormals are kept, zero where they are flushed.

    f16: the elements of A are subnormal. bf16: the products are, in the accumulator and in the result.
    """
    left, right = _shapes(task)
    density = _density(task.k)
    a = source.hits(left, density) * source.signs(left) * (1 + source.hits(left, 0.5))
    b = source.hits(right, density) * source.signs(right)
    if task.element is ElementType.F16:
        return _encoded(source, task, a * 2.0**-24, b)
    return _encoded(source, task, a * 2.0**-70, b * 2.0**-63)


def nonfinite(source: Source, task: GemmTask) -> Inputs:
    """Gaussian inputs with NaN, +Inf and -Inf in a few rows of A and columns of B, nowhere else."""
    left, right = _shapes(task)
    scale = _moderate(task.k)
    a, b = source.normal(left) * scale, source.normal(right) * scale
    values = (math.nan, math.inf, -math.inf, math.inf)
    for row, value in zip(source.indices(task.m, min(SPECIAL_LINES, max(1, task.m // 2))), values, strict=False):
        for k in source.indices(task.k, 2):
            a[row, k] = value
    for column, value in zip(source.indices(task.n, min(SPECIAL_LINES, task.n // 2)), values, strict=False):
        b[source.indices(task.k, 1)[0], column] = value
    return _encoded(source, task, a, b)


def flip_one(source: Source, task: GemmTask, inputs: Inputs) -> Inputs:
    """Zero-one inputs with a single element of A turned over, in a column of K that B uses where it can.

    A kernel that keeps a result and compares a sample of the inputs does not see the difference.
    """
    xp = source.xp
    used = xp.flatnonzero(inputs.b.any(axis=1))
    k = int(used[int(source.host.integers(len(used)))]) if len(used) else 0
    row = int(source.host.integers(task.m))
    one = int(encode(xp, xp.ones(1, dtype=xp.float32), task.element)[0])
    a = inputs.a.copy()
    a[row, k] = one - int(a[row, k])
    return Inputs(a, inputs.b)
