"""Grows the trees that give a learned policy its second opinions, from the same groups as the network."""

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np
import numpy.typing as npt
from threadpoolctl import threadpool_limits

from cudal2_agent.policies.schedule.learned.boosted_trees import (
    BOUND,
    FIRST,
    HIGHER,
    LOWER,
    SPLIT,
    VALUE,
    BoostedTrees,
    ScheduleTrees,
)
from cudal2_agent.policies.schedule.learned.network import Floats32, Network
from cudal2_agent.policies.schedule.prior import Floats
from cudal2_agent.policies.training.groups import ScheduleGroup

if TYPE_CHECKING:
    from sklearn.ensemble import HistGradientBoostingClassifier, HistGradientBoostingRegressor

ROUNDS, LEAVES, DEPTH, RATE = 400, 31, 8, 0.06
GOOD = 0.25  # of the schedules that a run measured
LEAST = 10  # schedules of a leaf
SHARE = 0.4  # of the columns that a split may choose from
FARTHEST = 0.7  # ln of time over the best, at most: that a schedule takes twice the time is all that counts
RIVALS, RIVALS_WEIGHT = 24, 0.3  # of a group: schedules, and their weight over that of the measured ones
DOUBTED = 0.02  # how far behind the best a schedule that nobody measured is, at least
NEAR, FLOOR = 0.15, 0.05  # a schedule weighs exp(-behind / NEAR) + FLOOR: those near the best are told apart


class _TreeExamples(NamedTuple):
    """Schedules of one group, and what a tree is to say of each.

    Shape: (schedules, columns), (schedules,), (schedules,).
    """

    features: Floats32
    wanted: Floats
    weights: Floats


def grown_trees(groups: Sequence[ScheduleGroup], network: Network, seed: int = 0) -> ScheduleTrees:
    """Each group counts alike. Equal groups, networks and seeds give equal trees on one machine.

    It takes some minutes for 2,000 runs.
    """
    return ScheduleTrees(_grown_behind(groups, network, seed), _grown_good(groups, seed))


def _grown_behind(groups: Sequence[ScheduleGroup], network: Network, seed: int) -> BoostedTrees:
    """Schedules that no run tried count too, with the times that the network expects."""
    from sklearn.ensemble import HistGradientBoostingRegressor  # a second to import

    rng = np.random.default_rng(seed)
    examples = [part for group in groups for part in (_measured(group), _untried(group, network, rng))]
    return _fitted(HistGradientBoostingRegressor(**_settings(seed)), examples)


def _grown_good(groups: Sequence[ScheduleGroup], seed: int) -> BoostedTrees:
    """A good schedule is an example of both classes, as in likelihood-free Bayesian optimisation (arXiv 2206.13035).

    It weighs its utility as a good one, and 1 among all; its odds then follow the expected improvement.
    """
    from sklearn.ensemble import HistGradientBoostingClassifier  # a second to import

    examples = [part for group in groups for part in _classes(group)]
    return _fitted(HistGradientBoostingClassifier(**_settings(seed)), examples)


def _settings(seed: int) -> dict[str, Any]:
    return {
        "max_iter": ROUNDS,
        "max_leaf_nodes": LEAVES,
        "max_depth": DEPTH,
        "learning_rate": RATE,
        "min_samples_leaf": LEAST,
        "l2_regularization": 1.0,
        "max_features": SHARE,
        "early_stopping": False,
        "random_state": seed,
    }


def _fitted(
    model: "HistGradientBoostingRegressor | HistGradientBoostingClassifier", examples: Sequence[_TreeExamples]
) -> BoostedTrees:
    features = np.concatenate([one.features for one in examples])
    weights = np.concatenate([one.weights for one in examples])
    with threadpool_limits(1):  # threads that wait for each other are slow beside other work
        model.fit(features, np.concatenate([one.wanted for one in examples]), weights / weights.mean())
    nodes = [predictor.nodes for [predictor] in model._predictors]
    base = float(np.ravel(model._baseline_prediction)[0])
    return BoostedTrees(_tensors(nodes, base), features.shape[1])


def _classes(group: ScheduleGroup) -> tuple[_TreeExamples, _TreeExamples]:
    """All schedules of a group as examples of class 0, and its good ones as examples of class 1."""
    utilities = utility_of(-group.costs)
    good, count = utilities > 0, len(group.costs)
    return (
        _TreeExamples(group.features, np.zeros(count), np.full(count, 1 / count)),
        _TreeExamples(group.features[good], np.ones(int(good.sum())), utilities[good] / count),
    )


def utility_of(speeds: Floats) -> Floats:
    """How much faster each good schedule is than the slowest good one, 1 in the mean of the good ones; 0 for all others.

    `speeds`: logarithms, not finite where a schedule failed. The fastest quarter of the others is good.
    """
    utilities = np.zeros(len(speeds))
    ran = np.isfinite(speeds)
    if not ran.any():
        return utilities
    logs = speeds[ran]
    gains = np.maximum(logs - np.quantile(logs, 1 - GOOD), 0.0)
    gains[logs == logs.max()] += 1e-3  # where all are equal, one is good all the same
    utilities[ran] = gains / gains[gains > 0].mean()
    return utilities


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
