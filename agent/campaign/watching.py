"""Watches a campaign through the store: new rows, counts, speedups by class, rates. It does not matter who recorded them."""

import math
import time
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from statistics import mean
from typing import Protocol

from cudal2_agent.agent.campaign.module_figures import ModuleFigures, module_figures
from cudal2_agent.contract.base import Record
from cudal2_agent.contract.records.campaign import ShapeResult
from cudal2_agent.contract.records.evaluation import AUTOTUNED
from cudal2_agent.contract.records.module_campaign import CampaignResult
from cudal2_agent.store.campaign_queue import CampaignQueue

# Classes by the time of cuBLASLt-AutoTuning: name, and the time in microseconds below which a shape belongs to it.
CLASSES = (("under 4 us", 4.0), ("4 to 15 us", 15.0), ("15 to 60 us", 60.0), ("over 60 us", math.inf))
LOOK_S = 1.0  # between two looks at the store
GRACE_S = 20.0  # after the deadline, to the tasks in progress


class ClassFigures(Record):
    """Geometric means over AutoTuning of the shapes of a class; None where there are none. `faster`: share above 1."""

    name: str
    shapes: int
    geomean: float | None = None
    geomean_without: float | None = None
    faster: float | None = None


class CampaignCost(Record):
    """What the shapes of a campaign took in the mean, and the memory at its peak; None where no row has a figure."""

    gpu_s: float | None = None
    host_cpu_s: float | None = None
    candidates: float | None = None
    search_peak_mib: float | None = None
    campaign_peak_mib: float | None = None


def cost_of(results: Sequence[CampaignResult]) -> CampaignCost:
    if not results:
        return CampaignCost()
    hosts = [one.host for one in results if one.host is not None]
    return CampaignCost(
        gpu_s=mean(one.gpu_seconds for one in results),
        host_cpu_s=mean(host.cpu_s for host in hosts) if hosts else None,
        candidates=mean(one.candidates for one in results),
        search_peak_mib=max((host.peak_mib for host in hosts), default=None),
        campaign_peak_mib=max((host.campaign_mib for host in hosts), default=None),
    )


def class_of(result: ShapeResult) -> str | None:
    """The class of a result; None where AutoTuning was not timed."""
    time_us = result.baselines_us.get(AUTOTUNED)
    return None if time_us is None else next(name for name, limit_us in CLASSES if time_us < limit_us)


def class_figures(results: Iterable[ShapeResult]) -> list[ClassFigures]:
    """One row per class, then one for all. Of several results of a task the last counts."""
    latest = list({result.task: result for result in results}.values())
    rows = [_figures(name, [one for one in latest if class_of(one) == name]) for name, _ in CLASSES]
    return [*rows, _figures("all", latest)]


def _figures(name: str, results: Sequence[ShapeResult]) -> ClassFigures:
    ratios = [one.best.speedup.ratio for one in results if one.best]
    without = [one.best_without.speedup.ratio for one in results if one.best_without]
    return ClassFigures(
        name=name,
        shapes=len(ratios),
        geomean=_geomean(ratios),
        geomean_without=_geomean(without),
        faster=sum(ratio > 1 for ratio in ratios) / len(ratios) if ratios else None,
    )


def _geomean(ratios: Sequence[float]) -> float | None:
    return math.exp(sum(map(math.log, ratios)) / len(ratios)) if ratios else None


@dataclass(frozen=True)
class WorkerView:
    """One process: the device, what it does, since when, how many candidates it evaluated, and whether it uses a GPU."""

    device: str
    doing: str
    since_s: float
    candidates: int
    searches: bool


@dataclass(frozen=True)
class Overview:
    """A campaign at one moment. Rates and shares are of this process's campaign; None before the first shape ended.

    `busy`: share of the time in which the GPUs worked. `left_s`: expected time to the end. `of_modules`: its tasks are modules.
    """

    name: str
    done: int
    total: int
    failed: int
    unproved: int
    spent_s: float
    left_s: float | None
    candidates_per_s: float
    busy: float | None
    classes: Sequence[ClassFigures]
    workers: Sequence[WorkerView]
    modules: Sequence[ModuleFigures] = ()
    of_modules: bool = False


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

    def finished(self, result: CampaignResult) -> None: ...
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
        held = queue.modules()
        self._modules = [one.result for one in held]
        self._last_module = max((one.key for one in held), default=0)
        self._new: list[CampaignResult] = []

    def is_late(self, grace_s: float = 0.0) -> bool:
        return self.deadline_s is not None and time.time() >= self.deadline_s + grace_s

    def leaves_time(self) -> bool:
        """Whether another search may begin, by the time that those since this process began took."""
        return leaves_time(self.deadline_s, [row.seconds for row in self._new])

    def look(self, workers: Sequence[WorkerView], *, at_once: bool = False) -> None:
        """Every LOOK_S: show what came to the store."""
        if not at_once and time.monotonic() - self._looked_s < LOOK_S:
            return
        for stored in sorted(self._queue.results(self._last_key)):
            self._last_key = stored.key
            self._results.append(stored.result)
            self._tell(stored.result)
        for module in sorted(self._queue.modules(self._last_module)):
            self._last_module = module.key
            self._modules.append(module.result)
            self._tell(module.result)
        self._display.show(self._overview(workers))
        self._looked_s = time.monotonic()

    def _tell(self, result: CampaignResult) -> None:
        self._new.append(result)
        self._display.finished(result)

    def _overview(self, workers: Sequence[WorkerView]) -> Overview:
        counts, spent_s = self._queue.counts(), time.monotonic() - self._begin_s
        new = self._new
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
            classes=class_figures(self._results) if self._results or not self._modules else [],
            modules=module_figures(self._modules),
            of_modules=self._queue.holds_modules(),
            workers=workers,
        )
