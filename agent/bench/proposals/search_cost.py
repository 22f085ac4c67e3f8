"""What a search costs until it is near the best known, and how near it is after some candidates or GPU seconds. Pure."""

from collections.abc import Mapping, Sequence
from itertools import accumulate
from statistics import fmean, geometric_mean, median
from typing import NamedTuple

from cudal2_agent.agent.bench.proposals.estimates import Estimate, estimate, geometric
from cudal2_agent.agent.bench.proposals.proposal_rows import ArmProposals, ProposalRow
from cudal2_agent.contract.base import Record

NEAR = 0.98  # an arm's speed over that of the best known, at least, at which a search counts as done
CANDIDATES = (1, 2, 4, 8, 12, 16, 24, 32, 48)
SECONDS = (0.125, 0.25, 0.5, 1.0, 2.0, 4.0, 8.0)


class CurvePoint(Record):
    """Searches after some candidates or GPU seconds. `near`: share of those that came near the best known by then.

    `speed`: of the best so far over the best known, geometric mean. Without a working kernel one calls cuBLASLt-AutoTuning.
    """

    near: float
    speed: float


class SearchCost(Record):
    """What searches of an arm cost until they had 98 % of the best known speed. Unit: GPU seconds of screening.

    `reached`: share of the searches that came so near. `median_s`, `mean_s`: a search that did not counts with all its seconds,
    so that they are lower bounds. `reference_over`: seconds of the reference arm over those of this arm, geometric mean.
    """

    reached: Estimate
    median_s: float
    mean_s: float
    reference_over: Estimate | None
    by_candidates: dict[int, CurvePoint]
    by_seconds: dict[float, CurvePoint]


class SearchTrace(NamedTuple):
    """A search: after each candidate the GPU seconds spent, and the best speed so far over the best known, 0 without any.

    `library`: that of cuBLASLt-AutoTuning.
    """

    spent_s: Sequence[float]
    speeds: Sequence[float]
    library: float

    @property
    def near_at(self) -> int | None:
        return next((place for place, speed in enumerate(self.speeds) if speed >= NEAR), None)

    @property
    def cost_s(self) -> float:
        """Until it was near the best known; all that it spent where it never was."""
        return self.spent_s[-1 if self.near_at is None else self.near_at] if self.spent_s else 0.0

    def after(self, candidates: int) -> float:
        found = self.speeds[min(candidates, len(self.speeds)) - 1] if candidates and self.speeds else 0.0
        return found or self.library

    def count(self, seconds: float) -> int:
        """Candidates that were done by then."""
        return sum(spent <= seconds for spent in self.spent_s)


def trace_of(row: ProposalRow, arm: ArmProposals, worths: Mapping[str, float]) -> SearchTrace:
    """The search of an arm. `worths`: the speeds over AutoTuning of all candidates of the row that ran, one at least."""
    best = max(worths.values())
    spent_s = list(accumulate(row.by_id[name].gpu_s for name in arm.candidates))
    own = (worths.get(name, 0.0) / best for name in arm.candidates)
    return SearchTrace(spent_s, list(accumulate(own, max)), 1 / best)


def search_cost(traces: Mapping[str, SearchTrace], reference: Mapping[str, SearchTrace]) -> SearchCost | None:
    if not traces:
        return None
    seconds = [trace.cost_s for trace in traces.values()]
    pairs = [(reference[task].cost_s, traces[task].cost_s) for task in traces if task in reference]
    return SearchCost(
        reached=estimate([float(trace.near_at is not None) for trace in traces.values()]),
        median_s=median(seconds),
        mean_s=fmean(seconds),
        reference_over=geometric([slower / faster for slower, faster in pairs if slower > 0 and faster > 0]),
        by_candidates={count: _point([(trace, count) for trace in traces.values()]) for count in CANDIDATES},
        by_seconds={limit: _point([(trace, trace.count(limit)) for trace in traces.values()]) for limit in SECONDS},
    )


def _point(reached: Sequence[tuple[SearchTrace, int]]) -> CurvePoint:
    """Of searches after a number of candidates each."""
    near = fmean(trace.near_at is not None and trace.near_at < count for trace, count in reached)
    return CurvePoint(near=near, speed=geometric_mean(trace.after(count) for trace, count in reached))
