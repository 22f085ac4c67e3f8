"""Trees by hand: where a schedule ends up, and what is no tree."""

import numpy as np
import pytest

from cudal2_agent.policies.schedule.learned.boosted_trees import BOUND, FIRST, HIGHER, LOWER, SPLIT, VALUE, BoostedTrees

# Two trees: x0 <= 1 ? 0.5 : (x2 <= -3 ? 0.25 : 0.125), and a single leaf of 1.
TENSORS = {
    SPLIT: np.array([0, -1, 2, -1, -1, -1], np.int16),
    BOUND: np.array([1, 0, -3, 0, 0, 0], np.float32),
    LOWER: np.array([1, 0, 3, 0, 0, 0], np.int32),
    HIGHER: np.array([2, 0, 4, 0, 0, 0], np.int32),
    VALUE: np.array([0, 0.5, 0, 0.25, 0.125, 1], np.float32),
    FIRST: np.array([0, 5], np.int32),
}


def test_a_value_at_the_bound_goes_to_the_lower_side() -> None:
    rows = np.array([[1.0, 9, 0], [1.5, 9, -3], [1.5, 9, -2.9], [-7, 9, -9]])
    assert BoostedTrees(TENSORS, 3)(rows).tolist() == [1.5, 1.25, 1.125, 1.5]
    assert BoostedTrees(TENSORS, 3)(np.zeros((0, 3))).shape == (0,)


@pytest.mark.parametrize(
    ("name", "value", "words"),
    [
        (SPLIT, [3, -1, 2, -1, -1, -1], "other features"),
        (LOWER, [0, 0, 3, 0, 0, 0], "behind its parent"),
        (HIGHER, [2, 0, 6, 0, 0, 0], "behind its parent"),
        (FIRST, [0, 6], "no root"),
        (FIRST, [], "no root"),
        (VALUE, [0.5], "without a bound or a value"),
        (LOWER, [1], "without children"),
    ],
)
def test_damaged_trees_are_refused(name: str, value: list[float], words: str) -> None:
    broken = TENSORS | {name: np.array(value, TENSORS[name].dtype)}
    with pytest.raises(ValueError, match=words):
        BoostedTrees(broken, 3)


def test_a_missing_array_is_named() -> None:
    with pytest.raises(KeyError, match="bound"):
        BoostedTrees({name: value for name, value in TENSORS.items() if name != BOUND}, 3)
