"""Trees grown from runs whose times are known."""

import numpy as np
import pytest
from sklearn import ensemble

from policies.schedule.learned.boosted_trees import BoostedTrees
from policies.schedule.learned.network import Network
from policies.training import tree_training
from policies.training.judging import judged
from policies.training.tree_training import grown_trees
from tests.doubles.learned_policies import random_weights
from tests.doubles.timed_runs import made_groups

GROUPS = made_groups()
NETWORK = Network(random_weights())


@pytest.fixture(autouse=True)
def _few(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(tree_training, "ROUNDS", 60)


@pytest.fixture
def trees() -> BoostedTrees:
    return grown_trees(GROUPS[:6], NETWORK)


def test_they_order_schedules_of_shapes_that_they_never_saw(trees: BoostedTrees) -> None:
    own = judged(GROUPS[6:], lambda group: trees(group.features))
    drawn = judged(GROUPS[6:], lambda group: np.random.default_rng(0).random(len(group.costs)))
    assert own["rank correlation"] > 0.8 > drawn["rank correlation"]
    assert own["best of 8 over best"] < drawn["best of 8 over best"]


def test_numpy_computes_what_the_library_does(monkeypatch: pytest.MonkeyPatch) -> None:
    made: list[ensemble.HistGradientBoostingRegressor] = []

    class Kept(ensemble.HistGradientBoostingRegressor):
        def fit(self, *data: object) -> "Kept":
            made.append(self)
            return super().fit(*data)

    monkeypatch.setattr(ensemble, "HistGradientBoostingRegressor", Kept)
    grown = grown_trees(GROUPS[:4], NETWORK)
    features = np.concatenate([group.features for group in GROUPS])
    assert grown(features) == pytest.approx(made[0].predict(features), abs=1e-5)


def test_equal_seeds_grow_equal_trees(trees: BoostedTrees) -> None:
    again, other = grown_trees(GROUPS[:6], NETWORK), grown_trees(GROUPS[:6], NETWORK, seed=1)
    assert all((again.tensors[name] == value).all() for name, value in trees.tensors.items())
    assert any(not np.array_equal(other.tensors[name], value) for name, value in trees.tensors.items())
