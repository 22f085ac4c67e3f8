"""The chance that a schedule fails, from how often its axis values have failed in this run."""

from collections import Counter
from collections.abc import Sequence

import numpy as np

from contract.candidate import ScheduleValue
from policies.schedule.prior import Floats
from policies.schedule.search.pool import Entry

DOUBT = 2.0  # successes granted to every value before it was tried

Trait = tuple[str, str, ScheduleValue]


class Risk:
    """A schedule is as risky as the worst of its values: whatever all failures have in common is left first.

    Values that every tried schedule shares are blamed together, since nothing tells them apart yet.
    """

    def __init__(self, tried: Sequence[Entry], failed: Sequence[bool]) -> None:
        tries = Counter(trait for entry in tried for trait in _traits(entry))
        failures = Counter(
            trait for entry, has_failed in zip(tried, failed, strict=True) if has_failed for trait in _traits(entry)
        )
        self._rates = {trait: count / (tries[trait] + DOUBT) for trait, count in failures.items()}

    def __call__(self, entries: Sequence[Entry]) -> Floats:
        """Chance of failure of each entry, under 1."""
        if not self._rates:
            return np.zeros(len(entries))
        return np.array([max(self._rates.get(trait, 0.0) for trait in _traits(entry)) for entry in entries])


def _traits(entry: Entry) -> list[Trait]:
    return [(entry.family.name, axis, value) for axis, value in entry.values.items()]
