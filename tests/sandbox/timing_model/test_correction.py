"""The fitted factor: where it holds, and how far it goes."""

import numpy as np
import pytest

from sandbox.timing_model.correction import Correction


def made(leaves: tuple[float, float, float, float]) -> Correction:
    """One tree of two questions: whether `a` is above 1, whether `b` is above 2."""
    questions = np.array([[0, 1]]), np.array([[1.0, 2.0]])
    return Correction(("a", "b"), np.array([0.0, 0.0]), np.array([10.0, 10.0]), *questions, np.array([leaves]))


def test_the_answers_number_the_leaf() -> None:
    tree = made((0.1, 0.2, 0.3, 0.4))
    found = [tree.factor({"a": a, "b": b}) for a, b in ((0, 0), (5, 0), (0, 5), (5, 5))]
    assert found == pytest.approx(np.exp([0.1, 0.2, 0.3, 0.4]))


def test_it_is_one_outside_what_it_was_fitted_on() -> None:
    tree = made((0.5, 0.5, 0.5, 0.5))
    assert tree.factor({"a": 5.0, "b": 10.0}) > 1.6
    assert tree.factor({"a": 5.0, "b": 10.1}) == 1.0
    assert tree.factor({"a": -0.1, "b": 5.0}) == 1.0


def test_it_is_bounded() -> None:
    assert made((9.0, 9.0, 9.0, 9.0)).factor({"a": 1.0, "b": 1.0}) == 2.0
    assert made((-9.0, -9.0, -9.0, -9.0)).factor({"a": 1.0, "b": 1.0}) == 0.5
