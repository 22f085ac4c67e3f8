"""Joining the scores of several signs into one."""

from collections.abc import Sequence

import numpy as np
from numpy.typing import NDArray

Scores = NDArray[np.float32]

_DEPTH = 500


def best(scores: Scores, count: int = _DEPTH) -> NDArray[np.int64]:
    """Positions with a score above zero, the highest first, equal ones in their order; at most `count`."""
    count = min(count, len(scores))
    if not count:
        return np.zeros(0, np.int64)
    least = -np.partition(-scores, count - 1)[count - 1]
    high = np.flatnonzero((scores >= least) & (scores > 0))
    found: NDArray[np.int64] = high[np.argsort(-scores[high], kind="stable")][:count]
    return found


def by_score(signs: Sequence[tuple[Scores, float]]) -> Scores:
    """Weighted sum of scores, each sign's best being 1. Shape: that of each sign's scores.

    Source: Bruch, Gai and Ingber, An analysis of fusion functions for hybrid retrieval (arXiv 2210.11934).
    """
    total = np.zeros(len(signs[0][0]), np.float32)
    for scores, weight in signs:
        top = float(scores.max(initial=0.0))
        if weight and top > 0:
            total += np.float32(weight / top) * scores
    return total


def by_rank(signs: Sequence[tuple[Scores, float]], smoothing: float) -> Scores:
    """Weighted sum of 1 / (smoothing + rank). Shape: that of each sign's scores.

    Source: Cormack, Clarke and Büttcher, Reciprocal rank fusion (SIGIR 2009).
    """
    total = np.zeros(len(signs[0][0]), np.float32)
    for scores, weight in signs:
        if weight:
            order = best(scores)
            total[order] += np.float32(weight) / (smoothing + 1 + np.arange(len(order), dtype=np.float32))
    return total
