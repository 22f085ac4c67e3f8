"""What outputs should be before they are rounded, and how far a kernel that computes in f32 may be from that.

Of a gated task f is the activation, s = A·B and u = A·up. The sums have errors of e_s and e_u at most (`bounds.py`):

    |d - f(s) u| <= u_out |f(s) u| + tiny / 2 + a |u| + (|f(s)| + a) e_u + OF_PRODUCT |f(s) u| + UNDERFLOW (1 + |u|)

    a = SLOPE e_s + OF_RESULT |f(s)| + OF_SUM |s|

a bounds the error of f(s) (`activations.py`). A kernel's factors are f(s) + x with |x| <= a, and u + y with |y| <= e_u. Their
product is f(s) u + x u + (f(s) + x) y, whose last three terms are bounded by those with a and e_u. OF_PRODUCT is the rounding
of that product in f32. UNDERFLOW is their rounding where f(s) or the product is subnormal in f32. The first two terms are those
of D, which `comparison.py` adds.

A sum that may be infinite in f32 makes outputs infinite. It makes NaNs where the other factor may be zero.
"""

from dataclasses import dataclass
from typing import Any

import numpy as np

from cudal2_agent.contract.records.task import GemmTask
from cudal2_agent.sandbox.verification.activations import INFINITE, activated, activation_bound
from cudal2_agent.sandbox.verification.elements import Array
from cudal2_agent.sandbox.verification.reference import Block

OF_PRODUCT = 2.0**-23
UNDERFLOW = 2.0**-149


@dataclass(frozen=True)
class WantedOutputs:
    """Outputs before they are rounded. Shape: each as the sums, or one for all.

    `error`: how far they may be off. `nan`, `zero`, `infinite`, `either`: outputs that may also be a NaN, a zero, the infinity
    of the sign of `values`, either infinity.
    """

    values: Array
    error: Array
    nan: Array | bool = False
    zero: Array | bool = False
    infinite: Array | bool = False
    either: Array | bool = False

    def allows(self, xp: Any, got: Array) -> Array:
        """Which outputs are among what they may be besides `values`. Shape: as the sums."""
        of_sign = self.either | (self.infinite & (xp.sign(got) == xp.sign(self.values)))
        return (self.nan & xp.isnan(got)) | (self.zero & (got == 0)) | (xp.isinf(got) & of_sign)


def wanted(xp: Any, task: GemmTask, block: Block, factor: float) -> WantedOutputs:
    """Of the sums of a block. `factor`: of the norms, by which sums may be wrong."""
    with np.errstate(invalid="ignore", over="ignore"):
        sums, error = block.product, factor * block.row_norms * block.column_norms
        if task.activation is None:
            return WantedOutputs(sums, error)
        results = activated(xp, task.activation, sums)
        error = activation_bound(xp, sums, results, error)
        least = sums <= -INFINITE  # of -inf, it may be the limit or what its formula gives
        if block.up is None:
            return WantedOutputs(results, error, nan=least, zero=least)
        return _gated(xp, block, results, error, factor)


def _gated(xp: Any, block: Block, results: Array, error: Array, factor: float) -> WantedOutputs:
    """`results`, `error`: of the activation."""
    sums, up, up_error = block.product, block.up, factor * block.row_norms * block.up_norms
    values, size = results * up, xp.abs(up)
    bound = error * size + (xp.abs(results) + error) * up_error + OF_PRODUCT * xp.abs(values) + UNDERFLOW * (1 + size)
    least, most, large = sums <= -INFINITE, sums >= INFINITE, size >= INFINITE
    # Infinite times what may be zero. A factor that is infinite itself is not, however large its bound.
    lost = (large & xp.isfinite(results) & (xp.abs(results) <= error)) | (most & xp.isfinite(up) & (size <= up_error))
    return WantedOutputs(
        values,
        bound,
        nan=(least & ~xp.isnan(up)) | lost,
        zero=least & xp.isfinite(up),
        infinite=large | most,
        either=lost,
    )
