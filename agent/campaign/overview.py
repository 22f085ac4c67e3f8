"""What a campaign has reached so far, in figures. Pure."""

import math
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from statistics import mean

from cudal2_agent.contract.base import Record
from cudal2_agent.contract.records.campaign import ShapeResult
from cudal2_agent.contract.records.evaluation import AUTOTUNED

# Classes by the time of cuBLASLt-AutoTuning: name, and the time in microseconds below which a shape belongs to it.
CLASSES = (("under 4 us", 4.0), ("4 to 15 us", 15.0), ("15 to 60 us", 60.0), ("over 60 us", math.inf))


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


def cost_of(results: Sequence[ShapeResult]) -> CampaignCost:
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

    `busy`: share of the time in which the GPUs worked. `left_s`: expected time to the end.
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
