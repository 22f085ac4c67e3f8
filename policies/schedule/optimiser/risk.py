"""The probability that a schedule fails, from how often its axis values have failed in this run."""

from collections import Counter
from collections.abc import Sequence

import numpy as np

from cudal2_agent.contract.records.candidate import ScheduleValue
from cudal2_agent.policies.schedule.optimiser.pool_entry import PoolEntry
from cudal2_agent.policies.schedule.prior import Floats

PRIOR_SUCCESSES = 2.0  # of every value, before it was tried

Trait = tuple[str, str, ScheduleValue]


class Risk:
    """The risk of a schedule is that of its riskiest value, so that values common to all failures are avoided first.

    Values that every tried schedule shares get the same risk, because no attempt distinguishes them.
    """

    def __init__(self, tried: Sequence[PoolEntry], failed: Sequence[bool]) -> None:
        tries = Counter(trait for entry in tried for trait in _traits(entry))
        failures = Counter(
            trait for entry, has_failed in zip(tried, failed, strict=True) if has_failed for trait in _traits(entry)
        )
        self._rates = {trait: count / (tries[trait] + PRIOR_SUCCESSES) for trait, count in failures.items()}

    def __call__(self, entries: Sequence[PoolEntry]) -> Floats:
        """Probability of failure of each entry, less than 1."""
        if not self._rates:
            return np.zeros(len(entries))
        return np.array([max(self._rates.get(trait, 0.0) for trait in _traits(entry)) for entry in entries])


def _traits(entry: PoolEntry) -> list[Trait]:
    return [(entry.family.name, axis, value) for axis, value in entry.values.items()]
