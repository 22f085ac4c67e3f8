"""Counts of calls: by the entry or the algorithm that ran them, and by the cause of those that PyTorch computed."""

import ctypes
import threading
from collections.abc import Mapping

from cudal2.dispatch.decision import FallbackCause


class CallTally:
    """Calls of one kind. An increment is one bytecode sequence without a call, so no thread switch of CPython loses one.

    `compiled`: the counter of calls that did not pass through Python; None where there is none.
    """

    __slots__ = ("calls", "compiled")

    def __init__(self) -> None:
        self.calls = 0
        self.compiled: ctypes.c_uint64 | None = None

    @property
    def total(self) -> int:
        return self.calls + (self.compiled.value if self.compiled is not None else 0)


class CallCounts:
    """All tallies of a service. `by_cause`: of the calls that the caller has to compute."""

    def __init__(self) -> None:
        self.by_cause = {cause: CallTally() for cause in FallbackCause}
        self._by_entry: dict[str, CallTally] = {}
        self._by_algorithm: dict[str, CallTally] = {}
        self._lock = threading.RLock()

    def of_entry(self, id_: str) -> CallTally:
        """What counts the calls that an entry runs."""
        with self._lock:
            return self._by_entry.setdefault(id_, CallTally())

    def of_algorithm(self, id_: str) -> CallTally:
        """What counts the calls that a stored algorithm of cuBLASLt runs."""
        with self._lock:
            return self._by_algorithm.setdefault(id_, CallTally())

    def fell_back(self, cause: FallbackCause) -> None:
        """Count a call that the caller has to compute."""
        self.by_cause[cause].calls += 1

    def served(self) -> dict[str, int]:
        """Calls by the entry that ran them."""
        with self._lock:
            return _totals(self._by_entry)

    def by_algorithm(self) -> dict[str, int]:
        """Calls by the stored algorithm of cuBLASLt that ran them."""
        with self._lock:
            return _totals(self._by_algorithm)

    def fallbacks(self) -> dict[FallbackCause, int]:
        """Calls that the caller computed, by cause."""
        return {cause: tally.total for cause, tally in self.by_cause.items() if tally.total}


def _totals(tallies: Mapping[str, CallTally]) -> dict[str, int]:
    """The counters that have counted."""
    return {name: tally.total for name, tally in tallies.items() if tally.total}
