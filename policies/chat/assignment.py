"""Assigns the replies of a round: each repairs a failed kernel or improves on the best one, with its exemplars."""

import random
from collections.abc import Sequence
from dataclasses import dataclass

from cudal2_agent.contract.records.candidate import Candidate
from cudal2_agent.contract.records.trajectory import Exemplar, Failure, Observation
from cudal2_agent.contract.settings.options import ChatOptions

SHOWN_EXEMPLARS = 2
POLICY = "chat"


@dataclass(frozen=True)
class Assignment:
    """One reply to request. `failure`: the candidate to repair; None for an improvement or a first kernel."""

    sample: int
    failure: Failure | None
    exemplars: tuple[Exemplar, ...]


def assign(observation: Observation, options: ChatOptions, count: int, seed: int) -> list[Assignment]:
    """Up to min(`count`, `options.samples`) replies. Repairs come first: one per failure, in at most half of the replies.

    A single reply repairs as long as there is a failure. Replies that may only hold schedules repair nothing, and there are
    no more of them than the candidates need. Deterministic in (seed, observation).
    """
    only_schedules = options.replies == "schedule"
    samples = min(-(-count // options.schedules) if only_schedules else count, options.samples)
    repairable = [failure for failure in observation.failures if not only_schedules and _repairable(failure, options)]
    repairs = repairable[: max(samples // 2, 1)]
    return [
        Assignment(sample, repairs[sample], ())
        if sample < len(repairs)
        else Assignment(sample, None, _exemplars(observation, _dice(observation, seed, sample)))
        for sample in range(samples)
    ]


def _dice(observation: Observation, seed: int, sample: int) -> random.Random:
    """The random choices of a reply. The observation's id is no seed: it depends on the time left, and replays must match."""
    return random.Random(f"{seed}/{observation.seed}/{observation.round}/{sample}")


def _repairable(failure: Failure, options: ChatOptions) -> bool:
    candidate = failure.candidate
    return isinstance(candidate, Candidate) and candidate.origin.policy == POLICY and failure.repairs < options.repairs


def _exemplars(observation: Observation, rng: random.Random) -> tuple[Exemplar, ...]:
    """Random exemplars from different buckets if possible, better buckets first. The best kernel is never an exemplar."""
    best_id = observation.best.id if observation.best else None
    offered = [exemplar for exemplar in observation.exemplars if exemplar.candidate.id != best_id]
    rng.shuffle(offered)
    distinct = {exemplar.bucket: exemplar for exemplar in reversed(offered)}
    chosen = _first(offered, list(distinct.values()))
    return tuple(sorted(chosen, key=lambda exemplar: (-exemplar.bucket, exemplar.candidate.id)))


def _first(offered: Sequence[Exemplar], distinct: Sequence[Exemplar]) -> list[Exemplar]:
    """The first exemplars with one per bucket, filled up with the others."""
    in_order = [exemplar for exemplar in offered if exemplar in distinct]
    others = [exemplar for exemplar in offered if exemplar not in distinct]
    return [*in_order, *others][:SHOWN_EXEMPLARS]
