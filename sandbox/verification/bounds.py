"""How far a correct kernel may be from the exact product, element by element.

An element is bounded by output rounding plus what accumulation loses, with |p| the size of the partial sums:

    |d - s| <= u_out |s| + tiny / 2 + u_acc |p| (LAMBDA sqrt(K) + TRUNCATION K)

The square root is the growth of errors rounded to nearest; LAMBDA = 8 makes exceeding it as good as impossible.
Source: Higham and Mary, A New Approach to Probabilistic Rounding Error Analysis (SIAM J. Sci. Comput. 41, 2019).

The linear term is for tensor cores, which truncate when they align addends to an f32 sum: a loss of at most 2 u_acc of the
sum, towards zero, at most once per 8 products, on partial sums up to 4 times their typical size: K/8 * 2 * 4 = K.
Source: Fasi, Higham, Mikaitis and Pranesh, Numerical behavior of NVIDIA tensor cores (PeerJ Comput. Sci. 7, 2021).
An f16 sum is rounded to nearest there, so it has no linear term beyond f32's.

Partial sums of one sign grow to at most |a_i| |b_j| (Cauchy-Schwarz); those of random signs to |a_i| |b_j| / sqrt(K).
"""

import math
from enum import StrEnum

from cudal2_agent.contract.records.task import AccumulatorType, GemmTask
from cudal2_agent.sandbox.verification.elements import FORMATS

LAMBDA = 8.0
TRUNCATION = 1.0
_UNEVEN_SIZES = 20
ROUNDOFF = {AccumulatorType.F32: 2.0**-24, AccumulatorType.F16: 2.0**-11}


class Growth(StrEnum):
    """How partial sums grow: RAMP where all products have one sign, WALK where signs are random."""

    RAMP = "ramp"
    WALK = "walk"


def accumulation_factor(task: GemmTask, growth: Growth) -> float:
    """The accumulation term as a multiple of |a_i| |b_j|; never more than the worst case of K truncated additions."""
    partial = 1.0 if growth is Growth.RAMP else 1.0 / math.sqrt(task.k)
    rounding = ROUNDOFF[task.accumulate] * LAMBDA * math.sqrt(task.k)
    truncation = ROUNDOFF[AccumulatorType.F32] * TRUNCATION * task.k
    return min(partial * (rounding + truncation), 2 * ROUNDOFF[task.accumulate] * task.k)


def rounding_floor(task: GemmTask, reference_rms: float, elements: int) -> float:
    """RMS error that any honest kernel may have: output rounding, and one accumulator rounding per 8 products.

    Rounding to nearest spreads evenly over an interval, so its RMS is its bound over sqrt(3); a chain of n roundings of a
    growing sum gives sqrt(n/2) of one. Few elements scatter around the RMS, hence the allowance. An output of a gated task
    has the errors of two sums, which count in full each.
    """
    form = FORMATS[task.element]
    output = math.hypot(form.roundoff * reference_rms, form.tiny / 2)
    sums_rms = task.products * reference_rms
    chain = ROUNDOFF[task.accumulate] * sums_rms * math.sqrt(task.k / 16)
    drift = ROUNDOFF[AccumulatorType.F32] * sums_rms * task.k / 16 if task.accumulate is AccumulatorType.F32 else 0.0
    allowance = 1 + 2 / math.sqrt(max(effective_count(task, elements), 1))
    return (math.hypot(output, chain) / math.sqrt(3) + drift) * allowance


def effective_count(task: GemmTask, elements: int) -> float:
    """The number of equally large outputs whose RMS scatters as much.

    Those of a gated task vary much in size: of f(s) u, with s and u normal, the fourth moment is about 20 times the square of
    the second.
    """
    return elements / _UNEVEN_SIZES if task.gated else float(elements)
