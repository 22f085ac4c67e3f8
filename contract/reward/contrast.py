"""The choice of contrastive exemplars: kernels of different scores, for a model to compare. Pure.

Source: CUDA-L1 (arXiv 2507.14111): exemplars come from different score buckets, P(bucket) ∝ exp((score − mean) / τ).
A score is the log of a speedup, or minus the log of a time.
"""

import math
import random
import statistics
from collections.abc import Callable, Sequence
from typing import TypeVar

MIN_WIDTH = math.log(1.02)  # kernels with a smaller difference show no contrast
MAX_WIDTH = math.log(1.5)
WIDTHS_PER_TEMPERATURE = 2.0  # the next lower bucket is about 0.6 times as likely

T = TypeVar("T")
Scored = Sequence[tuple[float, T]]
SourceOf = Callable[[T], str]


def draw_contrast(
    scored: Scored[T],
    count: int,
    seed: int | str,
    source_of: SourceOf[T],
    shown: str | None = None,
    *,
    min_width: float = MIN_WIDTH,
) -> list[tuple[int, T]]:
    """At most `count` kernels of different buckets and different sources, each with its bucket, best bucket first.

    Bucket 0 is the worst. `shown`: a source that the reader sees already. It is not chosen, and the chosen ones differ from it.
    `min_width`: a difference of scores that shows no contrast.
    """
    rng = random.Random(seed)
    width = _width([score for score, _ in scored], min_width)
    buckets = _buckets(
        [pair for pair in scored if source_of(pair[1]) != shown], width, max((s for s, _ in scored), default=0.0)
    )
    chosen: dict[int, T] = {}
    for number in _drawn(buckets, count, width * WIDTHS_PER_TEMPERATURE, rng):
        seen = [source_of(one) for one in chosen.values()] + ([shown] if shown is not None else [])
        chosen[number] = _least_like([one for _, one in buckets[number]], seen, source_of, rng)
    return [(number, chosen[number]) for number in sorted(chosen, reverse=True)]


def _width(scores: Sequence[float], min_width: float) -> float:
    """Half the distance from the best score to the median, so that one very slow kernel does not leave a single bucket."""
    if not scores:
        return min_width
    return min(max((max(scores) - statistics.median(scores)) / 2, min_width), MAX_WIDTH)


def _buckets(scored: Scored[T], width: float, best: float) -> dict[int, list[tuple[float, T]]]:
    """Kernels by bucket; bucket 0 is the worst. Buckets are cut from the best score down, and empty ones get no number."""
    by_depth: dict[int, list[tuple[float, T]]] = {}
    for score, one in scored:
        by_depth.setdefault(int((best - score) / width), []).append((score, one))
    return {number: by_depth[depth] for number, depth in enumerate(sorted(by_depth, reverse=True))}


def _drawn(buckets: dict[int, list[tuple[float, T]]], count: int, temperature: float, rng: random.Random) -> list[int]:
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


def _least_like(members: Sequence[T], seen: Sequence[str], source_of: SourceOf[T], rng: random.Random) -> T:
    """The member that shares the fewest lines with the sources in `seen`, then the shortest; a random one without sources."""
    if not seen:
        return rng.choice(members)
    lines = [_lines(source) for source in seen]

    def likeness(one: T) -> tuple[float, int]:
        source = source_of(one)
        return round(max(_shared(_lines(source), other) for other in lines), 2), len(source)

    return min(members, key=likeness)


def _lines(source: str) -> frozenset[str]:
    return frozenset(line.strip() for line in source.splitlines())


def _shared(one: frozenset[str], other: frozenset[str]) -> float:
    """Common lines as a share of all lines of both."""
    return len(one & other) / len(one | other) if one or other else 1.0
