"""Fuses the scores of several signals."""

from collections.abc import Sequence

import numpy as np
from numpy.typing import NDArray

from cudal2_agent.knowledge.lexical.word_index import Scores

_DEPTH = 500


def best(scores: Scores, count: int = _DEPTH) -> NDArray[np.int64]:
    """At most `count` positions with a score above zero, highest first; equal scores in order of position."""
    count = min(count, len(scores))
    if not count:
        return np.zeros(0, np.int64)
    minimum = -np.partition(-scores, count - 1)[count - 1]
    high = np.flatnonzero((scores >= minimum) & (scores > 0))
    found: NDArray[np.int64] = high[np.argsort(-scores[high], kind="stable")][:count]
    return found


def by_score(signals: Sequence[tuple[Scores, float]]) -> Scores:
    """Weighted sum of scores, where each signal's best score counts as 1. Shape: that of each signal's scores.

    Source: Bruch, Gai and Ingber, An analysis of fusion functions for hybrid retrieval (arXiv 2210.11934).
    """
    total = np.zeros(len(signals[0][0]), np.float32)
    for scores, weight in signals:
        top = float(scores.max(initial=0.0))
        if weight and top > 0:
            total += np.float32(weight / top) * scores
    return total


def by_rank(signals: Sequence[tuple[Scores, float]], smoothing: float) -> Scores:
    """Weighted sum of 1 / (smoothing + rank). Shape: that of each signal's scores.

    Source: Cormack, Clarke and Büttcher, Reciprocal rank fusion (SIGIR 2009).
    """
    total = np.zeros(len(signals[0][0]), np.float32)
    for scores, weight in signals:
        if weight:
            order = best(scores)
            total[order] += np.float32(weight) / (smoothing + 1 + np.arange(len(order), dtype=np.float32))
    return total
