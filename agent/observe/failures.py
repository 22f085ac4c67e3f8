"""Failed kernels that a model wrote and that no later candidate repairs. Pure."""

from collections import Counter
from collections.abc import Sequence

from cudal2_agent.agent.observe.ranking import Ranked
from cudal2_agent.contract.records.candidate import AnyCandidate
from cudal2_agent.contract.records.trajectory import Failure


def unrepaired(ranked: Sequence[Ranked], limit: int) -> tuple[Failure, ...]:
    """At most `limit` failures, latest first. Failed schedules are left out: their policy writes another one.

    A candidate failed if its latest evaluation did. It counts as repaired once a later candidate names it as a parent.
    `repairs` counts the chain of failed parents behind it; `proven` is the nearest verified candidate of the run.
    """
    latest = {one.attempt.candidate_id: one for one in ranked}
    failed = {candidate_id for candidate_id, one in latest.items() if one.step.evaluation.failed}
    repairs: dict[str, int] = {}
    named: set[str] = set()
    for one in ranked:
        if one.attempt.candidate_id not in repairs:
            parents = failed & repairs.keys() & set(one.step.candidate.origin.parents)
            repairs[one.attempt.candidate_id] = max((repairs[parent] + 1 for parent in parents), default=0)
            named |= parents
    left = [one for candidate_id, one in latest.items() if candidate_id in failed - named]
    left.sort(key=lambda one: one.step.index, reverse=True)
    shown = [one.step for one in left if one.step.candidate.origin.schedule is None][: max(limit, 0)]
    proven = [one.step.candidate for one in latest.values() if one.step.evaluation.passed]
    return tuple(
        Failure(
            candidate=step.candidate,
            evaluation=step.evaluation,
            repairs=repairs[step.candidate.id],
            proven=nearest(step.candidate, proven),
        )
        for step in shown
    )


def nearest(failed: AnyCandidate, proven: Sequence[AnyCandidate]) -> AnyCandidate | None:
    """The proven candidate that shares most lines with a failed one, the latest of equals; None where there is none.

    A line counts as often as both have it. What all kernels share, such as braces, does not change the order.
    """
    lines = Counter(failed.source.splitlines())
    return max(reversed(proven), key=lambda one: _likeness(lines, Counter(one.source.splitlines())), default=None)


def _likeness(left: Counter[str], right: Counter[str]) -> float:
    return 2 * (left & right).total() / max(left.total() + right.total(), 1)
