"""Figures of rows: how near to the best known an arm's proposals are. Pure.

The best known of a task is the fastest of all that was measured with it: what the arms proposed, and the schedules that led
earlier runs. A candidate that raced counts with the ratio of its race. One that was only screened counts with its screened
ratio times the median of raced over screened ratio, at most the best raced ratio. A failed candidate is near nothing.

The fastest of one race is too good by what chance gave it. So the best known and the best of each arm race a second time. Where
a row has this race, it alone says how near they are. Older rows lack it: there the race that chose also judges.

Predictions of rows without a GPU are figures of their own. They are never mixed with measured ones.
"""

from collections.abc import Iterable, Mapping, Sequence
from statistics import fmean, median
from typing import NamedTuple

from cudal2_agent.agent.bench.proposals.estimates import Estimate, estimate, geometric
from cudal2_agent.agent.bench.proposals.proposal_rows import ArmProposals, Basis, ProposalRow
from cudal2_agent.agent.bench.proposals.search_cost import SearchCost, SearchTrace, search_cost, trace_of
from cudal2_agent.contract.base import Record

FIRST_WITHIN, BEST_WITHIN = 1.05, 1.02  # an arm's time over that of the best known, at most
PROPOSALS = 8  # of which the best counts


class ArmFigures(Record):
    """One arm over shapes.

    `first_within`: share of the shapes on which its first proposal is within 5 % of the best known. `best_within`: the best of
    its first eight within 2 %. `first_mean`, `best_mean`: speed of these over the best known, geometric means over the shapes
    on which one of them ran. `failed`: of its `proposed` candidates among the first eight; `missing`: fewer than eight were
    proposed. `errors`: shapes on which it raised. `propose_s`, `gpu_s`: means per shape: wall-clock seconds to propose the
    first eight, and to verify and time them.
    """

    name: str
    note: str
    first_within: Estimate
    best_within: Estimate
    first_mean: Estimate | None
    best_mean: Estimate | None
    proposed: int
    failed: int
    missing: int
    errors: int
    propose_s: float
    gpu_s: float
    search: SearchCost | None


class BenchFigures(Record):
    """The arms on the shapes of one environment and kind of task.

    `skipped`: tasks on which no candidate ran. `confirmed`: shapes whose best known raced a second time.
    """

    basis: Basis
    environment: str
    kind: str
    shapes: int
    skipped: int
    confirmed: int = 0
    arms: tuple[ArmFigures, ...]


class _ArmAtTask(NamedTuple):
    """An arm at one task. `worths`: speeds of all candidates of the row that ran."""

    row: ProposalRow
    arm: ArmProposals
    worths: Mapping[str, float]

    @property
    def first_eight(self) -> tuple[str, ...]:
        return self.arm.candidates[:PROPOSALS]

    def share(self, ids: Iterable[str]) -> float | None:
        """The speed of the best of some candidates over the best known; None where none of them ran."""
        best, chosen = fastest(self.worths), fastest(self.worths, ids)
        if best is None or chosen is None:
            return None
        known, own = self.row.by_id[best].confirmed, self.row.by_id[chosen].confirmed
        return own / known if own is not None and known is not None else self.worths[chosen] / self.worths[best]


def figures_of(rows: Sequence[ProposalRow], reference: str = "schedule") -> list[BenchFigures]:
    """Figures of each basis, environment and kind of task. An arm counts by its newest row of a task and size.

    `reference`: the arm to whose search the others are compared.
    """
    kinds: dict[tuple[Basis, str, str], list[ProposalRow]] = {}
    for row in rows:
        kinds.setdefault((row.basis, row.environment or row.chip, _kind(row)), []).append(row)
    return [_figures(basis, environment, kind, found, reference) for (basis, environment, kind), found in kinds.items()]


def worths_of(row: ProposalRow) -> dict[str, float]:
    """The speed of each candidate that ran: its ratio over AutoTuning, or one over its predicted time."""
    if row.basis == "predicted":
        return {one.candidate_id: 1 / one.predicted_us for one in row.candidates if one.predicted_us and not one.failed}
    raced = {one.candidate_id: one.raced for one in row.candidates if one.raced is not None}
    gaps = [one.raced / one.screened for one in row.candidates if one.raced is not None and one.screened]
    gap, most = median(gaps) if gaps else 1.0, max(raced.values(), default=None)
    worths = dict(raced)
    for one in row.candidates:
        if one.screened is not None and one.race_status is None:
            worths[one.candidate_id] = one.screened * gap if most is None else min(one.screened * gap, most)
    return worths


def fastest(worths: Mapping[str, float], ids: Iterable[str] | None = None) -> str | None:
    """The fastest of all candidates, or of some; None where none of them ran."""
    return max((name for name in (worths if ids is None else ids) if name in worths), key=worths.__getitem__, default=None)


def contenders(row: ProposalRow, margin: float) -> list[str]:
    """What the figures of a row rest on: the best known, and the first and the best of the first eight of each arm.

    Of these only what raced, and not what is slower than the best known by more than the factor `margin`: it is near nothing.
    """
    worths = worths_of(row)
    best = fastest(worths)
    if best is None:
        return []
    chosen = [fastest(worths, ids) for arm in row.arms for ids in (arm.candidates[:1], arm.candidates[:PROPOSALS])]
    raced = [name for name in dict.fromkeys([best, *chosen]) if name is not None and row.by_id[name].raced is not None]
    return [name for name in raced if worths[name] * margin >= worths[best]]


def _kind(row: ProposalRow) -> str:
    task = row.task
    return f"{task.element} accumulate {task.accumulate}, {task.layout}, {task.mode}{task.epilogue}"


def _figures(basis: Basis, environment: str, kind: str, rows: Sequence[ProposalRow], reference: str) -> BenchFigures:
    newest: dict[tuple[str, str, str, bool], tuple[ProposalRow, ArmProposals]] = {}
    for row in sorted(rows, key=lambda row: row.finished_at):
        for arm in row.arms:
            newest[arm.name, arm.note, row.task.id, row.size.searches] = (row, arm)
    ran = {id(row): found for row in rows if (found := worths_of(row))}
    seen: dict[tuple[str, str], list[_ArmAtTask]] = {}
    for (name, note, _, _), (row, arm) in newest.items():
        if worths := ran.get(id(row)):
            seen.setdefault((name, note), []).append(_ArmAtTask(row, arm, worths))
    traces = {key: _searches(each) for key, each in seen.items()}
    compared = next((found for (name, _), found in traces.items() if name == reference), {})
    arms = tuple(_arm(*key, each, traces[key], {} if key[0] == reference else compared) for key, each in seen.items())
    counted = {one.row.task.id for each in seen.values() for one in each}
    confirmed = {row.task.id for row in rows if any(one.confirmed is not None for one in row.candidates)}
    return BenchFigures(
        basis=basis,
        environment=environment,
        kind=kind,
        shapes=len(counted),
        skipped=len({row.task.id for row in rows} - counted),
        confirmed=len(counted & confirmed),
        arms=arms,
    )


def _arm(
    name: str,
    note: str,
    seen: Sequence[_ArmAtTask],
    traces: Mapping[str, SearchTrace],
    reference: Mapping[str, SearchTrace],
) -> ArmFigures:
    once = list({one.row.task.id: one for one in seen}.values())  # of a task benched in both sizes, the later
    first = [one.share(one.arm.candidates[:1]) for one in once]
    best = [one.share(one.first_eight) for one in once]
    wanted = [min(PROPOSALS, one.row.size.budget) for one in once]
    failed = [sum(one.row.by_id[name].failed for name in one.first_eight) for one in once]
    return ArmFigures(
        name=name,
        note=note,
        first_within=estimate([_within(share, FIRST_WITHIN) for share in first]),
        best_within=estimate([_within(share, BEST_WITHIN) for share in best]),
        first_mean=geometric(first),
        best_mean=geometric(best),
        proposed=sum(len(one.first_eight) for one in once),
        failed=sum(failed),
        missing=sum(count - len(one.first_eight) for count, one in zip(wanted, once, strict=True)),
        errors=sum(bool(one.arm.error) for one in once),
        propose_s=fmean(_propose_s(one) for one in once),
        gpu_s=fmean(sum(one.row.by_id[name].gpu_s for name in one.first_eight) for one in once),
        search=search_cost(traces, reference),
    )


def _propose_s(one: _ArmAtTask) -> float:
    """Of the rounds that the first eight came in."""
    proposed, seconds = 0, 0.0
    for ids, spent_s in zip(one.arm.rounds, one.arm.propose_s, strict=True):
        if proposed >= PROPOSALS:
            break
        proposed, seconds = proposed + len(ids), seconds + spent_s
    return seconds


def _searches(seen: Sequence[_ArmAtTask]) -> dict[str, SearchTrace]:
    """Task → search, of measured rows in which arms search."""
    searched = (one for one in seen if one.row.size.searches and one.row.basis == "measured")
    return {one.row.task.id: trace_of(one.row, one.arm, one.worths) for one in searched}


def _within(share: float | None, limit: float) -> float:
    return float(share is not None and share * limit >= 1)
