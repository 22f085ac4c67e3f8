"""Activations of sums in float64, and how far a kernel that computes them in f32 may be from that.

    |d - f(s)| <= u_out |f(s)| + tiny / 2 + SLOPE e + OF_RESULT |f(s)| + OF_SUM |s|

e bounds the error of the sum s (`bounds.py`). The last two terms are for f itself: fast exponentials and reciprocals, and
additions of numbers near -1 and 1 where s is negative.
"""

import math
from typing import Any

import numpy as np

from cudal2_agent.contract.records.task import Activation
from cudal2_agent.sandbox.verification.elements import Array

SLOPE = 1.13  # the largest of any activation: that of GELU at sqrt(2)
OF_RESULT, OF_SUM = 2.0**-18, 2.0**-22
INFINITE = float(np.finfo(np.float32).max) * (1 - 2.0**-20)  # a sum of this size may be infinite in f32
_TANH, _CUBE = math.sqrt(2 / math.pi), 0.044715
_erfc = np.frompyfunc(math.erfc, 1, 1)


def activated(xp: Any, activation: Activation | None, sums: Array) -> Array:
    """f of each sum. Shape: any, float64. GELU and SiLU of -inf are NaN, as in PyTorch."""
    with np.errstate(over="ignore", invalid="ignore"):
        match activation:
            case None:
                return sums
            case Activation.RELU:
                return xp.where(sums < 0, 0.0, sums)
            case Activation.SILU:
                return sums / (1 + xp.exp(-sums))
            case Activation.GELU_TANH:
                return sums / (1 + xp.exp(-2 * _TANH * (sums + _CUBE * sums**3)))
            case Activation.GELU:
                return sums * _normal_share(xp, sums)


def activation_bound(xp: Any, sums: Array, results: Array, error: Array | float) -> Array:
    """Of the difference to f(s), before D is rounded. `error`: the bound of the sum's own."""
    return SLOPE * error + OF_RESULT * xp.abs(results) + OF_SUM * xp.abs(sums)


def _normal_share(xp: Any, sums: Array) -> Array:
    """The share of a normal distribution below each number."""
    scaled = sums * -math.sqrt(0.5)
    if xp is np:
        return _erfc(scaled).astype(np.float64) / 2
    from cupyx.scipy.special import erfc

    return erfc(scaled) / 2
