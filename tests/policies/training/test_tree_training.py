"""Trees grown from runs whose times are known."""

import math
from typing import Any

import numpy as np
import pytest
from sklearn import ensemble

from cudal2_agent.policies.schedule.learned.boosted_trees import ScheduleTrees
from cudal2_agent.policies.schedule.learned.network import Network
from cudal2_agent.policies.training import tree_training
from cudal2_agent.policies.training.judging import judged
from cudal2_agent.policies.training.tree_training import grown_trees, utility_of
from tests.doubles.learned_policies import random_weights
from tests.doubles.timed_runs import made_groups

NETWORK = Network(random_weights())


@pytest.fixture(autouse=True)
def _few(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(tree_training, "ROUNDS", 60)


@pytest.fixture
def trees() -> ScheduleTrees:
    return grown_trees(made_groups()[:6], NETWORK)


def test_both_kinds_order_schedules_of_shapes_that_they_never_saw(trees: ScheduleTrees) -> None:
    behind = judged(made_groups()[6:], lambda group: trees.behind(group.features))
    good = judged(made_groups()[6:], lambda group: -trees.good(group.features))
    drawn = judged(made_groups()[6:], lambda group: np.random.default_rng(0).random(len(group.costs)))
    assert behind["rank correlation"] > 0.8 > drawn["rank correlation"]
    assert good["rank correlation"] > 0.5 > drawn["rank correlation"], "it tells a quarter from the others alone"
    assert behind["best of 8 over best"] < drawn["best of 8 over best"]
    assert good["best of 8 over best"] < drawn["best of 8 over best"]


@pytest.mark.parametrize("name", ["HistGradientBoostingRegressor", "HistGradientBoostingClassifier"])
def test_numpy_computes_what_the_library_does(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    made: list[Any] = []
    original = getattr(ensemble, name)

    class Kept(original):
        def fit(self, *data: object) -> Any:
            made.append(self)
            return super().fit(*data)

    monkeypatch.setattr(ensemble, name, Kept)
    grown = grown_trees(made_groups()[:4], NETWORK)
    features = np.concatenate([group.features for group in made_groups()])
    if name == "HistGradientBoostingRegressor":
        assert grown.behind(features) == pytest.approx(made[0].predict(features), abs=1e-5)
    else:
        assert grown.good(features) == pytest.approx(made[0].decision_function(features), abs=1e-4)


def test_utilities_weigh_the_fastest_quarter() -> None:
    utilities = utility_of(np.log([1.0, 2.0, 3.0, 4.0, math.nan, 5.0, 6.0, 7.0, 8.0]))
    assert (utilities > 0).tolist() == [False, False, False, False, False, False, False, True, True]
    assert utilities[-1] > utilities[-2]
    assert utilities[utilities > 0].mean() == pytest.approx(1.0)
    assert utility_of(np.array([math.nan])).tolist() == [0.0]
    assert (utility_of(np.array([2.0, 2.0])) > 0).all()


def test_equal_seeds_grow_equal_trees(trees: ScheduleTrees) -> None:
    again, other = grown_trees(made_groups()[:6], NETWORK), grown_trees(made_groups()[:6], NETWORK, seed=1)
    assert all((again.tensors[name] == value).all() for name, value in trees.tensors.items())
    assert any(not np.array_equal(other.tensors[name], value) for name, value in trees.tensors.items())
