"""Contrastive exemplars: earlier kernels of the run with different scores, for a model to compare. Pure.

Source: CUDA-L1 (arXiv 2507.14111): exemplars come from different score buckets, P(bucket) ∝ exp((score − mean) / τ).
"""

import math
import random
import statistics
from collections.abc import Sequence

from agent.observe.ranking import Ranked
from contract.candidate import AnyCandidate
from contract.trajectory import Exemplar

MIN_WIDTH = math.log(1.02)  # kernels with a smaller difference show no contrast
MAX_WIDTH = math.log(1.5)
WIDTHS_PER_TEMPERATURE = 2.0  # the next lower bucket is about 0.6 times as likely
Buckets = dict[int, list[tuple[float, Ranked]]]


def choose_exemplars(
    ranked: Sequence[Ranked], count: int, seed: int | str, shown: AnyCandidate | None = None
) -> tuple[Exemplar, ...]:
    """At most `count` candidates of different buckets and different sources, best bucket first.

    `shown`: a candidate that the prompt shows already. It is not chosen, and the chosen ones differ from it.
    """
    rng = random.Random(seed)
    scored = _scored(ranked)
    width = _width([score for score, _ in scored])
    buckets = _buckets(scored, width, shown)
    chosen: dict[int, Ranked] = {}
    for number in _drawn(buckets, count, width * WIDTHS_PER_TEMPERATURE, rng):
        seen = [one.step.candidate.source for one in chosen.values()] + ([shown.source] if shown else [])
        chosen[number] = _least_like([one for _, one in buckets[number]], seen, rng)
    return tuple(
        Exemplar(candidate=chosen[number].step.candidate, attempt=chosen[number].attempt, bucket=number)
        for number in sorted(chosen, reverse=True)
    )


def _scored(ranked: Sequence[Ranked]) -> list[tuple[float, Ranked]]:
    """Each source that passed, with its score. A candidate counts by its latest evaluation, equal sources by the best.

    The score is the log of the speedup over AutoTuning where all have one, otherwise −log of the time. Where nothing was
    measured, the modelled time takes its place.
    """
    latest = {one.attempt.candidate_id: one for one in ranked}.values()
    trusted = _comparable([one for one in latest if one.plausible])
    paired = [(math.log(one.attempt.speedup), one) for one in trusted if one.attempt.speedup is not None]
    if trusted:
        scored = paired if len(paired) == len(trusted) else [(-math.log(one.time_us), one) for one in trusted]
    else:
        scored = [(-math.log(one.predicted_us), one) for one in latest if one.estimated]
    scored.sort(key=lambda pair: pair[0])
    return list({one.step.candidate.source: (score, one) for score, one in scored}.values())


def _comparable(plausible: Sequence[Ranked]) -> list[Ranked]:
    """Without the candidates that wait for a second witness and are faster than every trusted one."""
    best_us = min((one.time_us for one in plausible if one.trusted), default=math.inf)
    return [one for one in plausible if one.trusted or one.time_us >= best_us]


def _width(scores: Sequence[float]) -> float:
    """Half the distance from the best score to the median, so that one very slow kernel does not leave a single bucket."""
    if not scores:
        return MIN_WIDTH
    return min(max((max(scores) - statistics.median(scores)) / 2, MIN_WIDTH), MAX_WIDTH)


def _buckets(scored: Sequence[tuple[float, Ranked]], width: float, shown: AnyCandidate | None) -> Buckets:
    """Candidates by bucket; bucket 0 is the worst. Buckets are cut from the best score down, and empty ones get no number."""
    best = max((score for score, _ in scored), default=0.0)
    by_depth: Buckets = {}
    for score, one in scored:
        if shown is None or one.step.candidate.source != shown.source:
            by_depth.setdefault(int((best - score) / width), []).append((score, one))
    return {number: by_depth[depth] for number, depth in enumerate(sorted(by_depth, reverse=True))}


def _drawn(buckets: Buckets, count: int, temperature: float, rng: random.Random) -> list[int]:
    """Different buckets, each drawn from the remaining ones with P ∝ exp(mean score / τ); a common mean cancels."""
    means = {number: statistics.fmean(score for score, _ in members) for number, members in buckets.items()}
    drawn: list[int] = []
    while means and len(drawn) < count:
        top = max(means.values())
        weights = [math.exp((mean - top) / temperature) for mean in means.values()]
        [number] = rng.choices(list(means), weights)
        del means[number]
        drawn.append(number)
    return drawn


def _least_like(members: Sequence[Ranked], seen: Sequence[str], rng: random.Random) -> Ranked:
    """The member that shares the fewest lines with the sources in `seen`, then the shortest; a random one without sources."""
    if not seen:
        return rng.choice(members)
    lines = [_lines(source) for source in seen]

    def likeness(one: Ranked) -> tuple[float, int]:
        source = one.step.candidate.source
        return round(max(_shared(_lines(source), other) for other in lines), 2), len(source)

    return min(members, key=likeness)


def _lines(source: str) -> frozenset[str]:
    return frozenset(line.strip() for line in source.splitlines())


def _shared(one: frozenset[str], other: frozenset[str]) -> float:
    """Common lines as a share of all lines of both."""
    return len(one & other) / len(one | other) if one or other else 1.0
