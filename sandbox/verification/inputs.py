"""The inputs of every test: what each consists of, and why a wrong kernel cannot pass it."""

import itertools
import math
from dataclasses import dataclass, replace
from typing import Any

import numpy as np

from cudal2_agent.contract.records.task import AccumulatorType, ElementType, GemmTask, Layout
from cudal2_agent.sandbox.verification.draws import Draws
from cudal2_agent.sandbox.verification.elements import FORMATS, Array, encode

EXPECTED_ONES = 32
WIDE_PAIRS = 768
_WIDE_UP = 2.0**-6
HEAVY_PAIRS, HEAVY = 4, 520.0  # of them; the magnitudes of all products together stay below 2^23
# Of each element type: the exponents of the largest binade and of the smallest subnormal, and the bits behind the point.
_RANGE = {ElementType.F16: (15, -24, 10), ElementType.BF16: (127, -133, 7)}
_FEW_BITS = 3  # behind the point of numbers that are added: about 32 of them have a sum of 11 bits
_LONE_POSITIONS, _LONE_LINES = 4, 1 / 4
_FACTORS = {ElementType.F16: (2.0**-10, 2.0**-14), ElementType.BF16: (2.0**-67, 2.0**-66)}  # normal; of the smallest subnormal
SPECIAL_LINES = 6
NAN_LINES, NAN_PERIOD = 32, 16  # further lines with a NaN each, at positions that differ modulo the K of an instruction
_LEADS = (1, 16)  # large elements at the beginning of an uneven row
_LEAST_BF16_PATTERN = 33  # biased exponent
SPECIAL_VALUES = (math.inf, math.nan, -math.inf)
_LARGEST_WHOLE_BIAS = 8
Mark = tuple[int, int, float]  # line, position in K, value
MET_ZEROS = 1 / 3  # of the elements that a NaN or an infinity is multiplied by


@dataclass(frozen=True)
class Inputs:
    """Operands as bit patterns. Shape: a (M, K), b and up (K, N), bias (N,), whatever the task's layout in memory."""

    a: Array
    b: Array
    bias: Array | None = None
    up: Array | None = None

    def stored(self, layout: Layout) -> tuple[Array, ...]:
        """A, B, and a bias or `up`, as a layout has them in memory. A transposed operand is a view that is not contiguous."""
        weights = [each.T if layout.transposes_b else each for each in (self.b, self.up) if each is not None]
        bias = [] if self.bias is None else [self.bias]
        return self.a.T if layout.transposes_a else self.a, *weights, *bias


def _encoded(source: Draws, task: GemmTask, a: Array, b: Array, third: Array | None = None) -> Inputs:
    """`third`: a bias, of a task that has one, zeros where None; `up` of a gated one."""
    xp, element = source.xp, task.element
    inputs = Inputs(encode(xp, a, element), encode(xp, b, element))
    if task.gated:
        return replace(inputs, up=encode(xp, third, element))
    return with_bias(xp, task, inputs, third)


def with_bias(xp: Any, task: GemmTask, inputs: Inputs, bias: Array | None = None) -> Inputs:
    """The inputs with a bias where the task has one: of these values, zeros where None. Shape: bias (N,)."""
    if not task.bias:
        return inputs
    return replace(inputs, bias=encode(xp, xp.zeros(task.n, dtype=xp.float32) if bias is None else bias, task.element))


def _whole_bias(source: Draws, task: GemmTask) -> Array | None:
    """Whole numbers whose sums with whole numbers are exact in f32; none is zero. None where the task has no bias."""
    if not task.bias:
        return None
    return source.signs((task.n,)) * (1 + source.xp.floor(_LARGEST_WHOLE_BIAS * source.uniform((task.n,))))


def _normal_bias(source: Draws, task: GemmTask, size: float) -> Array | None:
    """Normal numbers of a size. None where the task has no bias."""
    return source.normal((task.n,)) * size if task.bias else None


def _shapes(task: GemmTask) -> tuple[tuple[int, int], tuple[int, int]]:
    return (task.m, task.k), (task.k, task.n)


def density_of_ones(k: int) -> float:
    """Probability of a one in A and in B that leaves about EXPECTED_ONES products of ones in a sum over K."""
    return min(0.5, math.sqrt(EXPECTED_ONES / k))


def normal_scale(k: int) -> float:
    """A power of two that keeps sums over K of products of order one within a few thousand."""
    return 2.0 ** -max(0, math.ceil(math.log2(k / 4096) / 2))


def sum_scale(task: GemmTask, size: float) -> float:
    """A power of two for B and `up` of a gated task, whose sums would have a size: it brings them to between 1 and 2.

    There an activation bends, so that both factors show in each output, and no product of both overflows. 1 for other tasks.
    """
    return 2.0 ** -math.floor(math.log2(size)) if task.gated else 1.0


def weight_scale(task: GemmTask) -> float:
    """Of normal numbers in B and `up`, where those of A have the scale of `normal_scale`."""
    scale = normal_scale(task.k)
    return scale * sum_scale(task, scale**2 * math.sqrt(task.k))


def sparse_ones(source: Draws, task: GemmTask) -> Inputs:
    """Zeros and ones. Every partial sum is a small whole number, exact in any order and in every accumulator.

    Ones in B and `up` of a gated task have either sign, else A·B would pass through the activation unchanged.
    """
    left, right = _shapes(task)
    density = density_of_ones(task.k)
    if task.gated:
        a, b, up = (source.hits(shape, density) for shape in (left, right, right))
        return _encoded(source, task, a, b * source.signs(right), up * source.signs(right))
    return _encoded(source, task, source.hits(left, density), source.hits(right, density), _whole_bias(source, task))


def wide(source: Draws, task: GemmTask) -> Inputs:
    """Odd products past 2048 that cancel between columns of K paired at random, with a small residue.

    Every partial sum is a whole number under 2^23, so an f32 accumulator holds it in any order of K and under any split. A
    narrower accumulator must hold odd numbers past 2048 after its first instruction or its first product, in whatever order
    it traverses K: the partner that cancels them lies at a position it cannot predict. Products with B of a few pairs are
    beyond 65504 each, so that partial sums are lost where they are kept in F16, whatever the scale. Those with `up` have other
    signs and a 64th of the size, so that outputs do not overflow.
    """
    xp, (left, right) = source.xp, _shapes(task)
    a, b = xp.zeros(left, dtype=xp.float32), xp.zeros(right, dtype=xp.float32)
    plus, minus = source.pairs(task.k, WIDE_PAIRS)
    pairs = len(plus)
    values = source.odd((task.m, pairs), 33, 63)
    residue = source.hits((task.m, pairs), min(0.5, 8 / max(pairs, 1))) * source.signs((task.m, pairs))
    a[:, plus], a[:, minus] = values, residue - values
    weights = source.odd((pairs, task.n), 33, 63)
    heavy = min(pairs, HEAVY_PAIRS)
    a[:, plus[:heavy]] = HEAVY * source.signs((task.m, heavy))
    a[:, minus[:heavy]] = -a[:, plus[:heavy]]
    weights[:heavy] = HEAVY * source.signs((heavy, task.n))
    b[plus, :], b[minus, :] = weights, weights
    if task.gated:
        up, weights = xp.zeros(right, dtype=xp.float32), weights * source.signs(weights.shape) * _WIDE_UP
        up[plus, :], up[minus, :] = weights, weights
        return _encoded(source, task, a, b, up)
    return _encoded(source, task, a, b, _whole_bias(source, task))


def gaussian(source: Draws, task: GemmTask) -> Inputs:
    """A bias is as large as the products, so that one that is added to a rounded product shows."""
    left, right = _shapes(task)
    scale = normal_scale(task.k)
    if task.gated:
        a, b, up = source.normal(left), source.normal(right), source.normal(right)
        return _encoded(source, task, a * scale, b * weight_scale(task), up * weight_scale(task))
    a, b = source.normal(left) * scale, source.normal(right) * scale
    return _encoded(source, task, a, b, _normal_bias(source, task, scale**2 * math.sqrt(task.k)))


def uniform(source: Draws, task: GemmTask) -> Inputs:
    """Positive values: sums grow steadily, so that an accumulator that truncates or stagnates drifts.

    Columns of `up` have either sign.
    """
    left, right = _shapes(task)
    scale = normal_scale(task.k)
    if task.gated:
        a, b, up = source.uniform(left), source.uniform(right), source.uniform(right) * source.signs((1, task.n))
        of_weights = scale * sum_scale(task, scale**2 * task.k / 4)
        return _encoded(source, task, a * scale, b * of_weights, up * of_weights)
    a, b = source.uniform(left) * scale, source.uniform(right) * scale
    return _encoded(source, task, a, b, _normal_bias(source, task, scale**2 * math.sqrt(task.k)))


def cancellation(source: Draws, task: GemmTask) -> Inputs:
    """Pairs along K that cancel except for rounding: the result is far smaller than its terms."""
    xp, (left, right) = source.xp, _shapes(task)
    a, b = source.normal(left), source.normal(right)
    plus, minus = source.pairs(task.k, task.k)
    a[:, minus] = -a[:, plus]
    b[minus, :] = b[plus, :] * (1 + xp.float32(2**-7) * source.normal((len(plus), task.n)))
    scale = normal_scale(task.k)
    if task.gated:
        up = source.normal(right)
        up[minus, :] = up[plus, :] * (1 + xp.float32(2**-7) * source.normal((len(plus), task.n)))
        of_weights = scale * sum_scale(task, scale**2 * max(math.sqrt(task.k) * 2**-7, task.k % 2))
        return _encoded(source, task, a * scale, b * of_weights, up * of_weights)
    return _encoded(source, task, a * scale, b * scale, _normal_bias(source, task, scale**2 * math.sqrt(task.k) * 2**-7))


def large(source: Draws, task: GemmTask) -> Inputs:
    """Rows with results of a tenth, half and three times the largest number, of both signs; the last must overflow.

    Both sums of a gated task have the root of that size, and in each column a sign of their own.
    """
    xp, (left, right) = source.xp, _shapes(task)
    targets = source.xp.asarray(source.host.choice([0.1, 0.5, 3.0], size=(task.m, 1)), dtype=xp.float32)
    mean_product = 0.75**2
    if task.gated:
        scale = xp.float32(math.sqrt(math.sqrt(3.0 * FORMATS[task.element].overflow) / (mean_product * task.k)))
        a = (0.5 + 0.5 * source.uniform(left)) * xp.sqrt(targets / 3) * source.signs((task.m, 1)) * scale
        b, up = ((0.5 + 0.5 * source.uniform(right)) * source.signs((1, task.n)) * scale for _ in range(2))
        return _encoded(source, task, a, b, up)
    scale = math.sqrt(3.0 / (mean_product * task.k)) * math.sqrt(FORMATS[task.element].overflow)
    a = (0.5 + 0.5 * source.uniform(left)) * (targets / 3) * source.signs((task.m, 1)) * xp.float32(scale)
    return _encoded(source, task, a, (0.5 + 0.5 * source.uniform(right)) * xp.float32(scale))


def extremes(source: Draws, task: GemmTask) -> Inputs:
    """The largest numbers against the smallest: large in A and small in B for one half of K, and the reverse for the other.

    A large number is at most that of the type (65504 in F16), a small one 2^-e down to the smallest subnormal. All products
    are near 1/512 (F16) or 1/64 (BF16), and every partial sum is exact in each accumulator and any order. So a number that is
    scaled, clamped, converted by way of a narrower range, or flushed makes a wrong output. A quarter of the rows of A, and of
    the columns of B, hold one large number alone, with all its bits. Small numbers in `up` are larger, so that their products
    are near 1: two sums near 1/512 would make outputs of few bits.
    """
    xp, in_a = source.xp, source.half(task.k)
    exponents = _exponents(source, task)
    places = [source.host.permutation(np.flatnonzero(large))[:_LONE_POSITIONS] for large in (in_a, ~in_a)]
    for positions in places:
        exponents[positions[:1]] = _RANGE[task.element][0]
    product = _product_exponent(task)
    a = _extreme_lines(source, task, task.m, in_a, exponents, product)
    b = _extreme_lines(source, task, task.n, ~in_a, exponents, product)
    both = [(a, b, places[0], product), (b, a, places[1], product)]
    up = _extreme_lines(source, task, task.n, ~in_a, exponents, 0) if task.gated else None
    if up is not None:
        both.append((a, up, places[0], 0))
    for _, other, positions, exponent in both:  # no zeros where a lone number meets it
        small = np.ldexp(1.0, exponent - exponents[positions])
        other[:, xp.asarray(positions)] = source.signs((len(other), len(positions))) * xp.asarray(small)
    for own, positions in ((a, places[0]), (b, places[1]), *(((up, places[1]),) if up is not None else ())):
        _hold_lone(source, task, own, positions, exponents)
    return _encoded(source, task, a, b.T, None if up is None else up.T)


def _product_exponent(task: GemmTask) -> int:
    """Of the products of large numbers and small ones."""
    most, least, _ = _RANGE[task.element]
    return most + least


def _exponents(source: Draws, task: GemmTask) -> np.ndarray:
    """Of the large numbers at each position in K: half are among the four largest, half among all. Shape: (K,)."""
    most, host = _RANGE[task.element][0], source.host
    return np.where(host.random(task.k) < 1 / 2, most - host.integers(4, size=task.k), host.integers(1, most + 1, task.k))


def _extreme_lines(source: Draws, task: GemmTask, lines: int, large: np.ndarray, exponents: np.ndarray, product: int) -> Array:
    """Mostly zeros; else of either sign, large at some positions in K and small at the others. Shape: (lines, K), f64.

    `product`: the exponent of small numbers times the large ones of the other operand.
    """
    xp, shape, few = source.xp, (lines, task.k), 2**_FEW_BITS
    numbers = source.hits(shape, density_of_ones(task.k)) * source.signs(shape)
    digits = 1 + xp.floor(few * source.uniform(shape)) / few * xp.asarray(large.astype(np.float32))
    return numbers * digits * xp.asarray(np.ldexp(1.0, np.where(large, exponents, product - exponents)))


def _hold_lone(source: Draws, task: GemmTask, lines: Array, positions: np.ndarray, exponents: np.ndarray) -> None:
    """Some lines hold one number at one of the positions: the largest of its binade, the smallest, or any.

    The first of them holds the largest number of the type.
    """
    xp, host, bits = source.xp, source.host, _RANGE[task.element][2]
    count = int(_LONE_LINES * len(lines) + host.random()) if len(positions) else 0
    chosen, places = host.permutation(len(lines))[:count], np.resize(positions, count)
    digits = np.choose(host.integers(3, size=count), [0, 2**bits - 1, host.integers(2**bits, size=count)])
    digits[:1] = 2**bits - 1
    numbers = np.ldexp(1 + digits / 2**bits, exponents[places]) * (1 - 2 * host.integers(2, size=count))
    lines[xp.asarray(chosen)] = 0
    lines[xp.asarray(chosen), xp.asarray(places)] = xp.asarray(numbers)


def subnormal_results(source: Draws, task: GemmTask) -> Inputs:
    """Normal inputs whose products are small multiples of the smallest subnormal, and zero where results are flushed.

    With an f32 accumulator the products of half of the rows are an eighth of that. They are rounded to a subnormal, or to
    the zero of their sign. Of a gated task one sum is as small, in each column that of B or that of `up`; the other is a small
    number.
    """
    left, right = _shapes(task)
    of_a, of_b = _FACTORS[task.element]
    a, b = _signed_small(source, task, left), _signed_small(source, task, right)
    eighths = 0.0 if task.accumulate is AccumulatorType.F16 else 0.5
    a = a * (1 - source.hits((task.m, 1), eighths) * (7 / 8))
    if task.gated:
        up, in_b = _signed_small(source, task, right), source.hits((1, task.n), 0.5)
        of_small, of_other = (chosen * of_b + (1 - chosen) / of_a for chosen in (in_b, 1 - in_b))
        return _encoded(source, task, a * of_a, b * of_small, up * of_other)
    return _encoded(source, task, a * of_a, b * of_b)


def _signed_small(source: Draws, task: GemmTask, shape: tuple[int, int]) -> Array:
    """Mostly zeros; else 1 or 2 of either sign."""
    density = density_of_ones(task.k)
    return source.hits(shape, density) * source.signs(shape) * (1 + source.hits(shape, 0.5))


def patterns(source: Draws, task: GemmTask) -> Inputs:
    """Finite bit patterns, drawn from all of them, that single products with 1 or -1 copy to D.

    Half of the rows of A hold patterns in one half of K, and half of the columns of B choose one of them each. The other rows
    choose a pattern each of B's other columns, in the other half of K. All else is zero. BF16 leaves out numbers below 2^-94,
    which a kernel may lose where it scales or adds by atomics; `extremes` has them. Of a gated task each column has its
    patterns in one of B and `up`, and the sum of the other is 1.
    """
    (k_a, k_b), (rows, choosing_rows), (columns, choosing_columns) = (source.halves(size) for size in (task.k, task.m, task.n))
    a = _patterns_and_choices(source, task, task.m, (rows, k_a), (choosing_rows, k_b))
    b = _patterns_and_choices(source, task, task.n, (columns, k_b), (choosing_columns, k_a))
    if task.gated:
        return _patterns_in_either(source, task, a, b)
    return with_bias(source.xp, task, Inputs(a, source.xp.ascontiguousarray(b.T)))


def _patterns_in_either(source: Draws, task: GemmTask, a: Array, lines: Array) -> Inputs:
    """`lines` in B or in `up`; in the other a one, which a column of ones in A multiplies. Shape: a (M, K), lines (N, K)."""
    xp, place = source.xp, int(source.host.integers(task.k))
    ones, in_b = xp.zeros_like(lines), source.hits((task.n, 1), 0.5) > 0
    a[:, place] = ones[:, place] = encode(xp, xp.ones(1, dtype=xp.float32), task.element)[0]
    lines[:, place] = 0
    b, up = (xp.ascontiguousarray(xp.where(chosen, lines, ones).T) for chosen in (in_b, ~in_b))
    return Inputs(a, b, up=up)


def _patterns_and_choices(
    source: Draws, task: GemmTask, lines: int, drawn: tuple[slice, slice], choosing: tuple[slice, slice]
) -> Array:
    """Patterns in some lines and places in K; in others one of 1 and -1 in each line. Shape: (lines, K), bit patterns."""
    xp, bits = source.xp, _RANGE[task.element][2]
    found = xp.zeros((lines, task.k), dtype=xp.uint16)
    shape = found[drawn].shape
    exponents = 2 * _RANGE[task.element][0] + 1
    least = 0 if task.element is ElementType.F16 else _LEAST_BF16_PATTERN
    exponent = least + xp.floor(source.uniform(shape) * (exponents - least))
    digits = xp.floor(source.uniform(shape) * 2**bits)
    found[drawn] = (exponent * 2**bits + digits).astype(xp.uint16) | (
        source.hits(shape, 0.5).astype(xp.uint16) << xp.uint16(15)
    )
    at, places = np.arange(lines)[choosing[0]], np.arange(task.k)[choosing[1]]
    if len(at) and len(places):
        signs = encode(xp, source.signs((len(at),)), task.element)
        found[xp.asarray(at), xp.asarray(source.host.permutation(np.resize(places, len(at))))] = signs
    return found


def uneven(source: Draws, task: GemmTask) -> Inputs:
    """Rows of A, and columns of B, that begin with large elements and go on with small ones, whose sum counts all the same.

    Half of the rows are so: 1.5 to 3.5, then 2^-7 in one half of K. The others are of ones, with one of those at the
    beginning. Likewise B, in the other half of K. Every partial sum is exact in each accumulator and any order.
    """
    xp = source.xp
    first = min(int(source.host.choice(_LEADS)), task.k)
    in_a = source.half(task.k)
    a, b = (_uneven_lines(source, task, lines, own, first) for lines, own in ((task.m, in_a), (task.n, ~in_a)))
    third = _uneven_lines(source, task, task.n, ~in_a, first).T if task.gated else _whole_bias(source, task)
    return _encoded(source, task, a, xp.ascontiguousarray(b.T), third)


def _uneven_lines(source: Draws, task: GemmTask, lines: int, own: np.ndarray, first: int) -> Array:
    """Shape: (lines, K)."""
    xp, shape = source.xp, (lines, task.k)
    ones = source.hits(shape, density_of_ones(task.k)) * source.signs(shape)
    ones[:, :first] = 0
    small = ones * xp.asarray(own.astype(np.float32)) * 2**-7
    small[:, :first] = source.signs((lines, first)) * (1.5 + xp.floor(3 * source.uniform((lines, first))))
    ones[xp.arange(lines), xp.asarray(source.host.integers(first, size=lines))] = source.signs((lines,))
    return xp.where(xp.asarray(source.half(lines))[:, None], small, ones)


def nonfinite(source: Draws, task: GemmTask) -> Inputs:
    """Gaussian inputs with NaN, +Inf and -Inf in a few rows of A and columns of B, the first and the last among them.

    Some rows hold their value at two positions in K: infinities cancel to NaN where B differs in sign there. Others hold one
    NaN, at positions that differ modulo 16, the K of an instruction. Some of the values they are multiplied by are zero,
    which makes a NaN of each. At one position infinities of either sign meet. A bias has a NaN and infinities too. Of a gated
    task a column has them in B or in `up`.
    """
    left, right = _shapes(task)
    scale = normal_scale(task.k)
    a, b = source.normal(left) * scale, source.normal(right) * weight_scale(task)
    rows = _marks(source, task.m, task.k)
    columns = _marks(source, task.n, task.k)
    for _, k, _ in rows:
        b[k] = b[k] * (1 - source.hits((task.n,), MET_ZEROS))
    for _, k, _ in columns:
        a[:, k] = a[:, k] * (1 - source.hits((task.m,), MET_ZEROS))
    for row, k, value in rows:
        a[row, k] = value
    up = None
    if task.gated:
        up = source.normal(right) * weight_scale(task)
        for _, k, _ in rows:
            up[k] = up[k] * (1 - source.hits((task.n,), MET_ZEROS))
    for weights, own in zip((b, up), _divided(columns, task), strict=False):
        for column, k, value in own:
            weights[k, column] = value
    meeting = int(source.host.integers(task.k))
    for sign, row, column in zip((1, -1), _unmarked(source, task.m, rows), _unmarked(source, task.n, columns), strict=False):
        a[row, meeting] = b[meeting, column] = sign * math.inf
    if up is not None:
        return _encoded(source, task, a, b, up)
    bias = _normal_bias(source, task, scale**2 * math.sqrt(task.k))
    if bias is not None:
        finite = [column for column in source.indices(task.n, task.n) if column not in {marked for marked, _, _ in columns}]
        for column, value in zip(finite, SPECIAL_VALUES, strict=False):
            bias[column] = value
    return _encoded(source, task, a, b, bias)


def zero_times(source: Draws, task: GemmTask) -> Inputs:
    """Zero times NaN and infinity: A is zero in one half of K and of M, B in the other half of K and in a half of N.

    All finite products are zero. A few rows of A and columns of B hold NaN or an infinity where the other operand is zero
    throughout, so that D is NaN there and zero elsewhere. `up` is as B is, with those values in other columns. Not covered: a
    kernel that skips only blocks of zeros as large as both half of K and half of the other size.
    """
    left, right = _shapes(task)
    a, b = source.normal(left), source.normal(right)
    (k_a, k_b), (m_zero, m_rest), (n_zero, n_rest) = (source.halves(size) for size in (task.k, task.m, task.n))
    a[:, k_a], a[m_zero] = a[:, k_a] * 0, a[m_zero] * 0
    b[k_b], b[:, n_zero] = b[k_b] * 0, b[:, n_zero] * 0
    for row, k, value in _spread(source, range(task.m)[m_rest], range(task.k)[k_b]):
        a[row, k] = value
    up = None
    if task.gated:
        up = source.normal(right)
        up[k_b], up[:, n_zero] = up[k_b] * 0, up[:, n_zero] * 0
    for weights, own in zip((b, up), _divided(_spread(source, range(task.n)[n_rest], range(task.k)[k_a]), task), strict=False):
        for column, k, value in own:
            weights[k, column] = value
    return _encoded(source, task, a, b, up)


def _divided(marks: list[Mark], task: GemmTask) -> tuple[list[Mark], ...]:
    """The marks of columns, those of B and those of `up`: each has all three values. All are B's where there is no `up`."""
    if not task.gated:
        return (marks,)
    lines = list(dict.fromkeys(line for line, _, _ in marks))
    of_up = {line for index, line in enumerate(lines) if index // len(SPECIAL_VALUES) % 2}
    return [mark for mark in marks if mark[0] not in of_up], [mark for mark in marks if mark[0] in of_up]


def _marks(source: Draws, size: int, depth: int) -> list[Mark]:
    """(line, position in K, value) of NaNs and infinities: at most half of the lines, a few of them with two positions."""
    chosen = source.edges(size, min(SPECIAL_LINES + NAN_LINES, max(1, size // 2)))
    twice = min(SPECIAL_LINES, max(len(SPECIAL_VALUES), len(chosen) - NAN_PERIOD))
    found = zip(chosen[:twice], itertools.cycle(SPECIAL_VALUES), strict=False)
    marks = [(line, place, value) for line, value in found for place in source.edges(depth, 4)[:2]]
    steps = source.host.permutation(-(-depth // NAN_PERIOD))
    starts = source.host.permutation(min(NAN_PERIOD, depth))
    for index, line in enumerate(chosen[twice:]):
        place = int(steps[index % len(steps)]) * NAN_PERIOD + int(starts[index % len(starts)])
        marks.append((line, place % depth if place >= depth else place, math.nan))
    return marks


def _unmarked(source: Draws, size: int, marks: list[Mark]) -> list[int]:
    """Two lines without a mark, where there are so many."""
    marked = {line for line, _, _ in marks}
    return [line for line in source.indices(size, len(marked) + 2) if line not in marked][:2]


def _spread(source: Draws, lines: range, places: range) -> list[Mark]:
    """(line, position in K, value): each line with one position, drawn from all positions."""
    chosen = source.edges(len(lines), SPECIAL_LINES) if lines and places else []
    drawn = [(index + source.host.random()) * len(places) / len(chosen) for index in range(len(chosen))]
    found = zip(chosen, drawn, itertools.cycle(SPECIAL_VALUES), strict=False)
    return [(lines[line], places[int(place)], value) for line, place, value in found]
