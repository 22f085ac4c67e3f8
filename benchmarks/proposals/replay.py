"""Off-line: which of the schedules that were measured for a shape an arm would have tried first. Needs no GPU.

**What it cannot say.** Only schedules that earlier searches measured are ordered, about thirty per shape. Proposals of an arm
that nobody measured are not judged, neither good nor bad ones; and the searches were led by the analytic prior, so that its
bad schedules are rare among them. `python -m benchmarks.proposals evaluate` on a GPU judges proposals.

A ranker gives each entry a cost, the lower the better. An arm's first proposal is its entry with the lowest cost, its best of
eight the fastest of the eight with the lowest. `schedule` is the order of a search's first round, where similar schedules are
penalised; `prior` is that of the predicted times alone. For random order both figures are expectations, computed exactly.
"""

from collections.abc import Callable, Mapping, Sequence
from math import comb, exp, log
from pathlib import Path
from typing import NamedTuple

import numpy as np

from benchmarks.proposals.sweeps import Sweep
from cudal2_agent.agent.bench.proposals.estimates import Estimate, estimate
from cudal2_agent.agent.bench.proposals.proposal_figures import BEST_WITHIN, FIRST_WITHIN, PROPOSALS
from cudal2_agent.agent.wiring.schedule_prior import read_prior
from cudal2_agent.contract.base import Record
from cudal2_agent.contract.errors import UsageError
from cudal2_agent.contract.plan.chip import Chip
from cudal2_agent.contract.records.task import GemmTask
from cudal2_agent.policies.schedule.learned.policy_file import find_policy
from cudal2_agent.policies.schedule.optimiser.acquisition import rank_by_prior
from cudal2_agent.policies.schedule.optimiser.pool_entry import PoolEntry
from cudal2_agent.policies.schedule.optimiser.pool_prior import ANALYTIC
from cudal2_agent.policies.schedule.prior import Floats, predict_many_us

Ranker = Callable[[GemmTask, Chip, Sequence[PoolEntry]], Floats]
WARNING = "only schedules that earlier searches measured are ordered: proposals that nobody measured are not judged"


class ReplayFigures(Record):
    """An order of the measured schedules. Shares are of shapes; speeds over the best measured, geometric means."""

    ranker: str
    first_within: Estimate
    best_within: Estimate
    first_mean: Estimate
    best_mean: Estimate


class _Ordered(NamedTuple):
    """Probabilities and logarithms of speeds over the best measured, of one shape."""

    first_within: float
    best_within: float
    first: float
    best: float


def analytic_ranker(task: GemmTask, chip: Chip, entries: Sequence[PoolEntry]) -> Floats:
    return predict_many_us([entry.work for entry in entries], task, chip)


def search_ranker(task: GemmTask, chip: Chip, entries: Sequence[PoolEntry]) -> Floats:
    """The place of each entry in the order of a search without precedents."""
    ordered = rank_by_prior(entries, analytic_ranker(task, chip, entries), (), ANALYTIC.crowding)
    place = {id(entry): number for number, entry in enumerate(ordered)}
    return np.array([place[id(entry)] for entry in entries], dtype=np.float64)


def learned_ranker(name: str, home: Path) -> Ranker:
    """The order of a learned policy's times, with its caution. Raises: UsageError."""
    prior = read_prior(find_policy(name, home).path)
    return lambda task, chip, entries: prior.predict_us(entries, task, chip)


def replay(sweeps: Sequence[Sweep], rankers: Mapping[str, Ranker]) -> list[ReplayFigures]:
    """Figures of each ranker, and those of random order, over shapes with more schedules than count as proposals."""
    judged = [sweep for sweep in sweeps if len(sweep.entries) > PROPOSALS]
    if not judged:
        raise UsageError("the store holds no sweep of these shapes; import one with `cudal2-agent trajectories import`")
    ordered = {name: [_ordered(sweep, ranker) for sweep in judged] for name, ranker in rankers.items()}
    return [_figures(name, found) for name, found in {**ordered, "random": [_random(sweep) for sweep in judged]}.items()]


def _figures(name: str, outcomes: Sequence[_Ordered]) -> ReplayFigures:
    return ReplayFigures(
        ranker=name,
        first_within=estimate([one.first_within for one in outcomes]),
        best_within=estimate([one.best_within for one in outcomes]),
        first_mean=estimate([one.first for one in outcomes], exp),
        best_mean=estimate([one.best for one in outcomes], exp),
    )


def _ordered(sweep: Sweep, ranker: Ranker) -> _Ordered:
    shares = _shares(sweep)[np.argsort(ranker(sweep.task, sweep.chip, sweep.entries), kind="stable")]
    first, best = float(shares[0]), float(shares[:PROPOSALS].max())
    slowest = _slowest(shares)
    logs = (log(max(first, slowest)), log(max(best, slowest)))
    return _Ordered(float(first * FIRST_WITHIN >= 1), float(best * BEST_WITHIN >= 1), *logs)


def _random(sweep: Sweep) -> _Ordered:
    shares = np.sort(_shares(sweep))
    count, drawn = len(shares), comb(len(shares), PROPOSALS)
    near = int((shares * BEST_WITHIN >= 1).sum())
    logs = np.log(np.maximum(shares, _slowest(shares)))
    # The fastest of those drawn has place i, from below, where the others come from the i before it.
    best = sum(logs[place] * comb(place, PROPOSALS - 1) for place in range(PROPOSALS - 1, count)) / drawn
    within = 1 - comb(count - near, PROPOSALS) / drawn
    return _Ordered(float((shares * FIRST_WITHIN >= 1).mean()), within, float(logs.mean()), float(best))


def _shares(sweep: Sweep) -> Floats:
    """Speeds over the best measured; 0 for what failed."""
    shares: Floats = np.nan_to_num(sweep.ratios / sweep.best, nan=0.0)
    return shares


def _slowest(shares: Floats) -> float:
    """What a failed schedule counts as in a mean of speeds."""
    return float(shares[shares > 0].min())
