"""Failed kernels that a model wrote and that no later candidate repairs. Pure."""

from collections.abc import Sequence

from agent.observe.ranking import Ranked
from contract.trajectory import Failure


def unrepaired(ranked: Sequence[Ranked], limit: int) -> tuple[Failure, ...]:
    """At most `limit` failures, latest first. Failed schedules are left out: their policy writes another one.

    A candidate failed if its latest evaluation did. It counts as repaired once a later candidate names it as a parent.
    `repairs` counts the chain of failed parents behind it.
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
    return tuple(
        Failure(candidate=one.step.candidate, evaluation=one.step.evaluation, repairs=repairs[one.attempt.candidate_id])
        for one in left
        if one.step.candidate.origin.schedule is None
    )[: max(limit, 0)]
