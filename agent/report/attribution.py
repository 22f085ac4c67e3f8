"""For each improvement of a run: what its author had seen. Pure.

What an author saw is not proven to be the cause. Many steps without an improvement saw the same; `sightings` counts both.
"""

from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from math import inf

from cudal2_agent.agent.observe.ranking import Ranked, leader, rank
from cudal2_agent.agent.report.provenance import Seen, seen_by
from cudal2_agent.contract.base import Record
from cudal2_agent.contract.plan.chip import Chip
from cudal2_agent.contract.records.module_task import Task
from cudal2_agent.contract.records.trajectory import Observation, Step


class Improvement(Record):
    """A candidate that became the best. All times are measured, or all predicted where `measured` is false.

    `before_us`: None for the first one. `prompt_hash`: None where no model wrote it. `note`: the author's design.
    """

    index: int
    round: int
    candidate_id: str
    label: str
    policy: str
    measured: bool
    before_us: float | None
    after_us: float
    parents: tuple[str, ...]
    prompt_hash: str | None
    note: str
    seen: Seen

    @property
    def ratio(self) -> float | None:
        """The speedup over the best candidate before it."""
        return self.before_us / self.after_us if self.before_us is not None else None


class Sighting(Record):
    """How often a thing stood in prompts of candidates that improved the best time, and in prompts of others."""

    kind: str
    name: str
    improved: int
    others: int


def improvements(steps: Sequence[Step], observations: Mapping[str, Observation], task: Task, chip: Chip) -> list[Improvement]:
    """The steps that took the lead, in order; by predicted times where nothing was measured.

    A candidate whose latest evaluation failed never led. A second measurement of a candidate is no improvement.
    """
    first, latest = _first(steps), {step.candidate.id: rank(step, task, chip) for step in steps}
    tried = [rank(step, task, chip) for step in first.values()]
    measured = any(one.trusted for one in tried)
    leaders = _measured_leaders(tried, latest) if measured else _predicted_leaders(tried, latest)
    found: list[Improvement] = []
    best_us: float | None = None
    for one in leaders:
        time_us = one.time_us if measured else one.predicted_us
        found.append(_improvement(one.step, measured, best_us, time_us, seen_by(one.step, observations, first)))
        best_us = time_us
    return found


def _measured_leaders(tried: Sequence[Ranked], latest: Mapping[str, Ranked]) -> Iterator[Ranked]:
    """Each that was faster than all before it."""
    best_us = inf
    for one in tried:
        if one.trusted and latest[one.attempt.candidate_id].trusted and one.time_us < best_us:
            best_us = one.time_us
            yield one


def _predicted_leaders(tried: Sequence[Ranked], latest: Mapping[str, Ranked]) -> Iterator[Ranked]:
    """Each that led after some step. A kernel that no model predicts never led by its time."""
    predicted = [one for one in tried if latest[one.attempt.candidate_id].attempt.predicted_us is not None]
    led: set[str] = set()
    for count in range(1, len(predicted) + 1):
        best = leader(predicted[:count])
        if best is not None and best.estimated and best.attempt.candidate_id not in led:
            led.add(best.attempt.candidate_id)
            yield best


def sightings(steps: Sequence[Step], observations: Mapping[str, Observation], better: Sequence[Improvement]) -> list[Sighting]:
    """What stood in prompts, by the number of improvements after it. Candidates without a prompt are left out."""
    ids = {improvement.candidate_id for improvement in better}
    first = _first(steps)
    improved: Counter[tuple[str, str]] = Counter()
    others: Counter[tuple[str, str]] = Counter()
    for step in first.values():
        if step.candidate.origin.prompt_hash is not None:
            (improved if step.candidate.id in ids else others).update(_names(seen_by(step, observations, first)))
    counted = [
        Sighting(kind=kind, name=name, improved=improved[kind, name], others=others[kind, name])
        for kind, name in improved | others
    ]
    return sorted(counted, key=lambda one: (-one.improved, one.others, one.kind, one.name))


def _first(steps: Sequence[Step]) -> dict[str, Step]:
    """The first step of each candidate, in the order of the run."""
    first: dict[str, Step] = {}
    for step in steps:
        first.setdefault(step.candidate.id, step)
    return first


def _improvement(step: Step, measured: bool, before_us: float | None, after_us: float, seen: Seen) -> Improvement:
    origin = step.candidate.origin
    return Improvement(
        index=step.index,
        round=step.round,
        candidate_id=step.candidate.id,
        label=step.candidate.label,
        policy=origin.policy,
        measured=measured,
        before_us=before_us,
        after_us=after_us,
        parents=origin.parents,
        prompt_hash=origin.prompt_hash,
        note=origin.note,
        seen=seen,
    )


def _names(seen: Seen) -> set[tuple[str, str]]:
    """Kind and name of everything that the prompt held, without duplicates."""
    findings = seen.diagnosis.findings if seen.diagnosis else ()
    return {
        *(("chunk", f"{chunk.place} {chunk.symbol}".rstrip()) for chunk in seen.chunks),
        *(("exemplar", f"{exemplar.candidate_id[:8]} {exemplar.label}") for exemplar in seen.exemplars),
        *(("finding", finding.bottleneck) for finding in findings),
    }
