"""Watches a campaign through the store: new rows, counts, rates. It does not matter who recorded them."""

import time
from collections.abc import Sequence
from statistics import mean
from typing import Protocol

from cudal2_agent.agent.campaign.overview import Overview, WorkerView, class_figures
from cudal2_agent.contract.records.campaign import ShapeResult
from cudal2_agent.store.campaign_queue import CampaignQueue

LOOK_S = 1.0  # between two looks at the store
GRACE_S = 20.0  # after the deadline, to the tasks in progress


def leaves_time(deadline_s: float | None, took_s: Sequence[float]) -> bool:
    """Whether a search that begins now ends within the grace, if it takes as long as earlier ones in the mean.

    `deadline_s`: seconds since 1970; None for no limit. Without an earlier search, the deadline alone counts.
    """
    if deadline_s is None:
        return True
    beyond_s = max(mean(took_s) - GRACE_S, 0.0) if took_s else 0.0
    return time.time() + beyond_s < deadline_s


class Display(Protocol):
    """Where a campaign shows what it does."""

    def finished(self, result: ShapeResult) -> None: ...
    def show(self, overview: Overview) -> None: ...
    def note(self, message: str) -> None: ...


class CampaignWatch:
    """The campaign's clock, and what it has reached since this process began. `hours`: None for no limit."""

    def __init__(self, queue: CampaignQueue, display: Display, hours: float | None) -> None:
        self._queue, self._display = queue, display
        self._begin_s = self._looked_s = time.monotonic()
        self.deadline_s = time.time() + 3600 * hours if hours is not None else None
        stored = queue.results()
        self._results = [one.result for one in stored]
        self._last_key = max((one.key for one in stored), default=0)
        self._known = len(stored)

    def is_late(self, grace_s: float = 0.0) -> bool:
        return self.deadline_s is not None and time.time() >= self.deadline_s + grace_s

    def leaves_time(self) -> bool:
        """Whether another search may begin, by the time that those since this process began took."""
        return leaves_time(self.deadline_s, [row.seconds for row in self._results[self._known :]])

    def look(self, workers: Sequence[WorkerView], *, at_once: bool = False) -> None:
        """Every LOOK_S: show what came to the store."""
        if not at_once and time.monotonic() - self._looked_s < LOOK_S:
            return
        for stored in sorted(self._queue.results(self._last_key)):
            self._last_key = stored.key
            self._results.append(stored.result)
            self._display.finished(stored.result)
        self._display.show(self._overview(workers))
        self._looked_s = time.monotonic()

    def _overview(self, workers: Sequence[WorkerView]) -> Overview:
        counts, spent_s = self._queue.counts(), time.monotonic() - self._begin_s
        new = self._results[self._known :]
        left_s = spent_s / len(new) * counts.left if new else None
        if left_s is not None and self.deadline_s is not None:
            left_s = min(left_s, max(self.deadline_s - time.time(), 0.0))
        gpus = {one.device for one in workers if one.searches}
        candidates = max(sum(one.candidates for one in workers), sum(one.candidates for one in new))
        return Overview(
            name=self._queue.name,
            done=counts.done,
            total=counts.total,
            failed=counts.failed,
            unproved=self._queue.unproved(),
            spent_s=spent_s,
            left_s=left_s,
            candidates_per_s=candidates / max(spent_s, 1.0),
            busy=sum(one.gpu_seconds for one in new) / (spent_s * len(gpus)) if new and gpus else None,
            classes=class_figures(self._results),
            workers=workers,
        )
