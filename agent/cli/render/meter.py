"""Rate and time left of a stage of indexing, from its progress events."""

import time
from collections.abc import Callable

from contract.events import IndexProgress

_DOING = {
    "fetch": "fetching",
    "read": "reading files",
    "split": "splitting files",
    "embed": "embedding pieces",
    "publish": "publishing",
}
_MIN_S = 1.0  # a rate over less time is not reliable
_MIN_SHARE = 0.05  # before this share, the time left is a guess: the largest files come first
EVERY_S = 10.0


class IndexMeter:
    """One line per stage: done of total, rate, time left. Stages may alternate; each has its own clock."""

    def __init__(self, now_s: Callable[[], float] = time.monotonic) -> None:
        self._now_s = now_s
        self._begun: dict[tuple[str, str], tuple[float, int]] = {}
        self._said_s: dict[tuple[str, str], float] = {}

    def line(self, event: IndexProgress) -> str:
        """The current state of the stage."""
        key = (event.release, event.stage)
        begin_s, first = self._begun.setdefault(key, (self._now_s(), event.done))
        words = f"{event.release}: {_DOING[event.stage]}"
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

    def is_due(self, event: IndexProgress) -> bool:
        """Whether a log without a terminal gets this line: the first of a stage, and one per EVERY_S seconds."""
        key = (event.release, event.stage)
        if self._now_s() - self._said_s.get(key, float("-inf")) < EVERY_S:
            return False
        self._said_s[key] = self._now_s()
        return True
