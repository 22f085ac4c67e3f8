"""Which schedules to try next: the prior's best, made diverse, or draws from a surrogate of the measured times."""

from collections import Counter
from collections.abc import Iterator, Sequence

import numpy as np

from cudal2_agent.policies.schedule.optimiser.pool_entry import PoolEntry
from cudal2_agent.policies.schedule.optimiser.pool_prior import Crowding
from cudal2_agent.policies.schedule.optimiser.surrogate import Surrogate
from cudal2_agent.policies.schedule.prior import Floats

SHORTLIST = 128  # schedules that a joint draw covers


def rank_by_prior(
    entries: Sequence[PoolEntry], predicted_us: Floats, tried: Sequence[PoolEntry], crowding: Crowding
) -> Iterator[PoolEntry]:
    """Entries, fastest predicted first; each is penalised for similar ones that were tried or ranked before it."""
    groups = {group: number for number, group in enumerate(dict.fromkeys(entry.group for entry in entries))}
    names = sorted({entry.family.name for entry in entries})
    group_of = np.array([groups[entry.group] for entry in entries], dtype=np.intp)
    family_of = np.array([names.index(entry.family.name) for entry in entries], dtype=np.intp)
    seen_groups, seen_families = Counter(entry.group for entry in tried), Counter(entry.family.name for entry in tried)
    group_crowd = np.array([seen_groups[group] for group in groups], dtype=np.float64)
    family_crowd = np.array([seen_families[name] for name in names], dtype=np.float64)
    left = predicted_us.copy()
    for _ in range(len(entries)):
        penalty = crowding.group ** group_crowd[group_of] * crowding.family ** family_crowd[family_of]
        best = int(np.argmin(left * penalty))
        left[best] = np.inf
        group_crowd[group_of[best]] += 1
        family_crowd[family_of[best]] += 1
        yield entries[best]


def rank_by_draws(
    predicted_us: Floats, features: Floats, surrogate: Surrogate, rng: np.random.Generator, count: int
) -> list[int]:
    """At most `count` indices, each the fastest in one joint draw of all times (Thompson sampling).

    The draws cover a shortlist: the schedules with the lowest optimistic time.
    """
    mean, deviation = surrogate.predict(features)
    optimistic = np.log(predicted_us) + mean - deviation
    shortlist = np.argsort(optimistic, kind="stable")[:SHORTLIST]
    draws = np.log(predicted_us[shortlist]) + surrogate.draw(features[shortlist], count, rng)
    chosen: list[int] = []
    for draw in draws[: len(shortlist)]:
        draw[chosen] = np.inf
        chosen.append(int(np.argmin(draw)))
    return [int(shortlist[index]) for index in chosen]
