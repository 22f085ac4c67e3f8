"""Figures over shapes with their intervals."""

from collections.abc import Callable, Sequence
from math import exp, log

import numpy as np

from cudal2_agent.contract.base import Record

RESAMPLES = 2000


class Estimate(Record):
    """A figure over shapes with its 95 % bootstrap interval, which draws shapes."""

    value: float
    low: float
    high: float
    shapes: int


def estimate(values: Sequence[float], scale: Callable[[float], float] = float) -> Estimate:
    """The mean with its interval, both on a scale."""
    table = np.array(values, dtype=np.float64)
    drawn = np.random.default_rng(0).integers(len(table), size=(RESAMPLES, len(table)))
    low, high = np.quantile(table[drawn].mean(axis=1), (0.025, 0.975))
    return Estimate(value=scale(float(table.mean())), low=scale(float(low)), high=scale(float(high)), shapes=len(table))


def geometric(shares: Sequence[float | None]) -> Estimate | None:
    """The geometric mean of those that there are; None where there is none."""
    logs = [log(share) for share in shares if share]
    return estimate(logs, exp) if logs else None
