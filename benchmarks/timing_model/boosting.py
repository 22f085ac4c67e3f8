"""Gradient boosting of oblivious trees, in numpy: every node of a level asks the same question.

A tree of depth d has d questions and 2 ** d leaves, so that few numbers say all of it. Source: CatBoost (arXiv 1706.09516).
"""

from collections.abc import Iterator
from dataclasses import dataclass

import numpy as np

BINS = 32


@dataclass(frozen=True)
class Boosting:
    """`within`: how much more an error counts that is not common to the group. `ridge`: rows that a leaf's mean is drawn by."""

    trees: int = 150
    depth: int = 4
    rate: float = 0.1
    ridge: float = 8.0
    rows: float = 0.7
    columns: float = 0.5
    within: float = 0.5


@dataclass(frozen=True)
class ObliviousTree:
    """Shape: asked, above (depth,); leaves (2 ** depth,)."""

    asked: np.ndarray
    above: np.ndarray
    leaves: np.ndarray

    def values(self, table: np.ndarray) -> np.ndarray:
        return np.asarray(self.leaves[((table[:, self.asked] > self.above) << np.arange(len(self.asked))).sum(axis=1)])


def boosted(
    table: np.ndarray, target: np.ndarray, groups: np.ndarray, options: Boosting, seed: int, weights: np.ndarray | None = None
) -> Iterator[ObliviousTree]:
    """Trees whose sum approximates the target. Shape: table (rows, features); target, groups, weights (rows,)."""
    source = np.random.default_rng(seed)
    weights = np.ones(len(target)) if weights is None else weights
    edges = [_edges(column) for column in table.T]
    binned = np.stack([np.searchsorted(edge, column) for edge, column in zip(edges, table.T, strict=True)], axis=1)
    varied = np.array([place for place, edge in enumerate(edges) if len(edge)])
    reached = np.zeros(len(target))
    for _ in range(options.trees):
        left = target - reached
        left = left + options.within * (left - group_means(left, groups, weights))
        left = left / (1 + options.within)
        rows = np.flatnonzero(source.random(len(target)) < options.rows)
        columns = np.sort(source.choice(varied, max(round(options.columns * len(varied)), 1), replace=False))
        tree = _grown(binned, edges, left, weights, rows, columns, options)
        reached += tree.values(table)
        yield tree


def group_means(values: np.ndarray, groups: np.ndarray, weights: np.ndarray) -> np.ndarray:
    """The weighted mean of each row's group."""
    sums = np.bincount(groups, weights * values) / np.maximum(np.bincount(groups, weights), 1e-12)
    return np.asarray(sums[groups])


def _edges(column: np.ndarray) -> np.ndarray:
    """Thresholds between values that occur, at most `BINS` - 1."""
    values = np.unique(column)
    middles = (values[1:] + values[:-1]) / 2
    if len(middles) >= BINS:
        middles = np.unique(np.quantile(column, np.linspace(0, 1, BINS + 1)[1:-1]))
    return np.asarray(middles)


def _grown(
    binned: np.ndarray,
    edges: list[np.ndarray],
    left: np.ndarray,
    weights: np.ndarray,
    rows: np.ndarray,
    columns: np.ndarray,
    options: Boosting,
) -> ObliviousTree:
    weight, gradient = weights[rows], weights[rows] * left[rows]
    bins = binned[np.ix_(rows, columns)]
    width = BINS + 1
    leaf = np.zeros(len(rows), dtype=np.int64)
    asked, above = [], []
    offsets = np.arange(len(columns)) * width
    for level in range(options.depth):
        leaves = 1 << level
        keys = (leaf[:, None] * len(columns) * width + offsets + bins).ravel()
        size = leaves * len(columns) * width
        counts = np.bincount(keys, np.repeat(weight, len(columns)), size).reshape(leaves, len(columns), width).cumsum(axis=2)
        sums = np.bincount(keys, np.repeat(gradient, len(columns)), size).reshape(leaves, len(columns), width).cumsum(axis=2)
        all_counts, all_sums = counts[:, :, -1:], sums[:, :, -1:]
        gains = (sums**2 / (counts + options.ridge) + (all_sums - sums) ** 2 / (all_counts - counts + options.ridge)).sum(
            axis=0
        )
        for place, column in enumerate(columns):
            gains[place, len(edges[column]) :] = -1
        best, cut = np.unravel_index(int(gains.argmax()), gains.shape)
        asked.append(int(columns[best]))
        above.append(float(edges[columns[best]][cut]))
        leaf |= (bins[:, best] > cut).astype(np.int64) << level
    size = 1 << options.depth
    means = np.bincount(leaf, gradient, size) / (np.bincount(leaf, weight, size) + options.ridge)
    return ObliviousTree(np.array(asked), np.array(above), options.rate * means)
