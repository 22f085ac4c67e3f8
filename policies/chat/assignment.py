"""What each reply of a round is asked for: a repair of what failed, or a better kernel, and with which exemplars in sight."""

import random
from collections.abc import Sequence
from dataclasses import dataclass

from contract.candidate import Candidate
from contract.options import ChatOptions
from contract.trajectory import Exemplar, Failure, Observation

SHOWN_EXEMPLARS = 2
POLICY = "chat"


@dataclass(frozen=True)
class Assignment:
    """One reply to ask for. `failure`: what it is to repair; None where it is to improve or to write anew."""

    sample: int
    failure: Failure | None
    exemplars: tuple[Exemplar, ...]


def assign(observation: Observation, options: ChatOptions, count: int, seed: int) -> list[Assignment]:
    """At most `count` and `options.samples` replies. Repairs first: of each failure one, in at most half of them.

    A single reply repairs while there is something to repair. Deterministic in (seed, observation).
    """
    samples = min(count, options.samples)
    repairable = [failure for failure in observation.failures if _repairable(failure, options)]
    repairs = repairable[: max(samples // 2, 1)]
    return [
        Assignment(sample, repairs[sample], ())
        if sample < len(repairs)
        else Assignment(sample, None, _exemplars(observation, _dice(observation, seed, sample)))
        for sample in range(samples)
    ]


def _dice(observation: Observation, seed: int, sample: int) -> random.Random:
    """Not by the observation's id, which changes with the time left: a run that is replayed is to ask the same."""
    return random.Random(f"{seed}/{observation.seed}/{observation.round}/{sample}")


def _repairable(failure: Failure, options: ChatOptions) -> bool:
    candidate = failure.candidate
    return isinstance(candidate, Candidate) and candidate.origin.policy == POLICY and failure.repairs < options.repairs


def _exemplars(observation: Observation, rng: random.Random) -> tuple[Exemplar, ...]:
    """Some of the exemplars, from different buckets as long as there are any, the better one first; never the best kernel."""
    best_id = observation.best.id if observation.best else None
    offered = [exemplar for exemplar in observation.exemplars if exemplar.candidate.id != best_id]
    rng.shuffle(offered)
    distinct = {exemplar.bucket: exemplar for exemplar in reversed(offered)}
    chosen = _first(offered, list(distinct.values()))
    return tuple(sorted(chosen, key=lambda exemplar: (-exemplar.bucket, exemplar.candidate.id)))


def _first(offered: Sequence[Exemplar], distinct: Sequence[Exemplar]) -> list[Exemplar]:
    """The first few of one bucket each, filled up with others."""
    in_order = [exemplar for exemplar in offered if exemplar in distinct]
    others = [exemplar for exemplar in offered if exemplar not in distinct]
    return [*in_order, *others][:SHOWN_EXEMPLARS]
