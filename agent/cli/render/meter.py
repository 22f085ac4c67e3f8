"""Rate and time left of a stage of indexing or of a command over the store, from its progress events."""

import time
from collections.abc import Callable

from cudal2_agent.contract.events import IndexProgress, StoreProgress

_DOING = {
    "fetch": "fetching",
    "read": "reading files",
    "split": "splitting files",
    "embed": "embedding pieces",
    "publish": "publishing",
    "export": "exporting steps",
    "import": "importing steps",
    "merge": "merging steps",
    "verify": "checking records",
}
_MIN_S = 1.0  # a rate over less time is not reliable
_MIN_SHARE = 0.05  # before this share, the time left is a guess: the largest files come first
EVERY_S = 10.0


class Meter:
    """One line per stage: done of total, rate, time left. Stages may alternate; each has its own clock."""

    def __init__(self, now_s: Callable[[], float] = time.monotonic) -> None:
        self._now_s = now_s
        self._begun: dict[tuple[str, str], tuple[float, int]] = {}
        self._said_s: dict[tuple[str, str], float] = {}

    def line(self, event: IndexProgress | StoreProgress) -> str:
        """The current state of the stage."""
        key = _stage_of(event)
        begin_s, first = self._begun.setdefault(key, (self._now_s(), event.done))
        words = ": ".join(filter(None, (key[0], _DOING[event.stage])))
        if event.total == 1:
            return words
        if event.done or event.total:
            words += f" {event.done:,}" + (f" of {event.total:,}" if event.total else "")
        spent_s, done = self._now_s() - begin_s, event.done - first
        if spent_s < _MIN_S or done <= 0:
            return words
        rate = done / spent_s
        told = event.total and event.total > event.done >= _MIN_SHARE * event.total
        left = f", {(event.total - event.done) / rate:.0f} s left" if told and event.total else ""
        return f"{words}, {rate:,.0f}/s{left}"

    def is_due(self, event: IndexProgress | StoreProgress) -> bool:
        """Whether a log without a terminal gets this line: the first of a stage of indexing, and one per EVERY_S seconds."""
        key = _stage_of(event)
        if isinstance(event, StoreProgress) and key not in self._said_s:
            self._said_s[key] = self._now_s()
        if self._now_s() - self._said_s.get(key, float("-inf")) < EVERY_S:
            return False
        self._said_s[key] = self._now_s()
        return True


def _stage_of(event: IndexProgress | StoreProgress) -> tuple[str, str]:
    """The release, empty for a command over the store, and the stage."""
    return (event.release if isinstance(event, IndexProgress) else "", event.stage)
