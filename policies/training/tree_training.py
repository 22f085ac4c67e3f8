"""Grows the trees that give a learned policy its second opinion, from the same groups as the network."""

from collections.abc import Sequence
from typing import NamedTuple

import numpy as np
import numpy.typing as npt
from threadpoolctl import threadpool_limits

from policies.schedule.learned.boosted_trees import BOUND, FIRST, HIGHER, LOWER, SPLIT, VALUE, BoostedTrees
from policies.schedule.learned.network import Floats32, Network
from policies.schedule.prior import Floats
from policies.training.groups import ScheduleGroup

ROUNDS, LEAVES, DEPTH, RATE = 400, 31, 8, 0.06
LEAST = 10  # schedules of a leaf
SHARE = 0.4  # of the columns that a split may choose from
FARTHEST = 0.7  # ln of time over the best, at most: that a schedule takes twice the time is all that counts
RIVALS, RIVALS_WEIGHT = 24, 0.3  # of a group: schedules, and their weight over that of the measured ones
DOUBTED = 0.02  # how far behind the best a schedule that nobody measured is, at least
NEAR, FLOOR = 0.15, 0.05  # a schedule weighs exp(-behind / NEAR) + FLOOR: those near the best are told apart


class _TreeExamples(NamedTuple):
    """Schedules of one group. `behind`: ln of the time over the best.

    Shape: (schedules, columns), (schedules,), (schedules,).
    """

    features: Floats32
    behind: Floats
    weights: Floats


def grown_trees(groups: Sequence[ScheduleGroup], network: Network, seed: int = 0) -> BoostedTrees:
    """Each group counts alike. Schedules that no run tried count too, with the times that the network expects.

    Equal groups, networks and seeds give equal trees on one machine. It takes some minutes for 2,000 runs.
    """
    from sklearn.ensemble import HistGradientBoostingRegressor  # a second to import

    rng = np.random.default_rng(seed)
    examples = [part for group in groups for part in (_measured(group), _untried(group, network, rng))]
    weights = np.concatenate([one.weights for one in examples])
    model = HistGradientBoostingRegressor(
        max_iter=ROUNDS,
        max_leaf_nodes=LEAVES,
        max_depth=DEPTH,
        learning_rate=RATE,
        min_samples_leaf=LEAST,
        l2_regularization=1.0,
        max_features=SHARE,
        early_stopping=False,
        random_state=seed,
    )
    with threadpool_limits(1):  # threads that wait for each other are slow beside other work
        model.fit(
            np.concatenate([one.features for one in examples]),
            np.concatenate([one.behind for one in examples]),
            weights / weights.mean(),
        )
    nodes = [predictor.nodes for [predictor] in model._predictors]
    base = float(np.ravel(model._baseline_prediction)[0])
    return BoostedTrees(_tensors(nodes, base), groups[0].features.shape[1])


def _measured(group: ScheduleGroup) -> _TreeExamples:
    behind = group.costs - group.costs.min()
    return _TreeExamples(group.features, np.minimum(behind, FARTHEST), _weights(behind) / len(behind))


def _untried(group: ScheduleGroup, network: Network, rng: np.random.Generator) -> _TreeExamples:
    """Some rivals of a group. Without them, trees would be free to like what nobody measured."""
    chosen = rng.choice(len(group.rival_prior), min(RIVALS, len(group.rival_prior)), replace=False)
    features = group.rival_features[chosen]
    scores = group.prior + network(group.features).error
    offset = np.average(group.costs - scores, weights=_weights(group.costs - group.costs.min()))
    expected = group.rival_prior[chosen] + network(features).error + offset - group.costs.min()
    behind = np.clip(expected, DOUBTED, FARTHEST)
    return _TreeExamples(features, behind, RIVALS_WEIGHT * _weights(behind) / max(len(chosen), 1))


def _weights(behind: Floats) -> Floats:
    near: Floats = np.exp(-behind / NEAR) + FLOOR
    return near


def _tensors(trees: Sequence[npt.NDArray[np.void]], base: float) -> dict[str, npt.NDArray[np.generic]]:
    """The arrays of all trees, one behind the other. `base`: what the model adds to their sum; the first tree holds it."""
    first = np.cumsum([0, *(len(tree) for tree in trees[:-1])])
    nodes, offset = np.concatenate(trees), np.repeat(first, [len(tree) for tree in trees])
    leaf = nodes["is_leaf"].astype(bool)
    value = np.where(leaf, nodes["value"], 0.0)
    value[: len(trees[0])] += np.where(leaf[: len(trees[0])], base, 0.0)
    # Bounds are F64 and features F32: the largest F32 up to the bound parts them in the same way.
    bound = nodes["num_threshold"].astype(np.float32)
    bound = np.where(bound > nodes["num_threshold"], np.nextafter(bound, np.float32(-np.inf)), bound)
    return {
        SPLIT: np.where(leaf, -1, nodes["feature_idx"]).astype(np.int16),
        BOUND: np.where(leaf, np.float32(0), bound),
        LOWER: np.where(leaf, 0, nodes["left"] + offset).astype(np.int32),
        HIGHER: np.where(leaf, 0, nodes["right"] + offset).astype(np.int32),
        VALUE: value.astype(np.float32),
        FIRST: first.astype(np.int32),
    }
