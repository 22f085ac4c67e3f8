"""Gains over cuBLASLt-AutoTuning with 95 % intervals, and how those of several products add up.

A speedup r of a kernel over AutoTuning's time T spares T * (1 - 1/r) per call. The interval of r gives that of the time spared.
Calls of one kernel share its error, so their deviations add up. Kernels were measured in different races, whose errors are
independent: their deviations add up in squares, for either side apart. The error of T itself is not in the interval.
"""

import math
from collections import defaultdict
from collections.abc import Hashable, Iterable
from typing import NamedTuple

from cudal2_agent.contract.base import Record
from cudal2_agent.contract.reward.speedup import Speedup


class GainInterval(Record):
    """A gain with the ends of its 95 % interval. The unit stands beside it."""

    value: float
    low: float
    high: float

    def times(self, factor: float) -> "GainInterval":
        """The same in another unit. `factor`: above zero."""
        return GainInterval(value=self.value * factor, low=self.low * factor, high=self.high * factor)


NO_GAIN = GainInterval(value=0.0, low=0.0, high=0.0)


class KernelGain(NamedTuple):
    """What one kernel spares. Gains of the same `kernel` share its error."""

    kernel: Hashable
    gain: GainInterval


def time_spared(autotuning_us: float, speedup: Speedup) -> GainInterval:
    """Per call. Unit: microseconds."""
    value, low, high = (autotuning_us * (1 - 1 / ratio) for ratio in (speedup.ratio, speedup.low, speedup.high))
    return GainInterval(value=value, low=low, high=high)


def total_gain(gains: Iterable[KernelGain]) -> GainInterval:
    """The sum, with the interval that follows from the rule above."""
    value = 0.0
    below: dict[Hashable, float] = defaultdict(float)
    above: dict[Hashable, float] = defaultdict(float)
    for kernel, gain in gains:
        value += gain.value
        below[kernel] += gain.value - gain.low
        above[kernel] += gain.high - gain.value
    return GainInterval(value=value, low=value - math.hypot(*below.values()), high=value + math.hypot(*above.values()))
