"""The fitted factor: where it holds, and how far it goes."""

from pathlib import Path

import numpy as np
import pytest

from cudal2_agent.sandbox.timing_model.correction import LEAF, Correction, fitted


def made(leaves: tuple[float, float, float]) -> Correction:
    """One tree: whether `a` is at most 1; if so, whether `b` is at most 2. And one of a single leaf."""
    asked = np.array([[0, 1, LEAF, LEAF, LEAF], [LEAF, 0, 0, 0, 0]])
    limit = np.array([[1.0, 2.0, 0.0, 0.0, 0.0], [0.0] * 5])
    left, right = (np.array([tree, [0] * 5]) for tree in ([1, 3, 0, 0, 0], [2, 4, 0, 0, 0]))
    value = np.array([[0.0, 0.0, leaves[2], leaves[0], leaves[1]], [0.01, 0.0, 0.0, 0.0, 0.0]])
    return Correction(np.array(["a", "b"]), np.zeros(2), np.full(2, 10.0), asked, limit, left, right, value)


def test_the_answers_lead_to_a_leaf_and_trees_are_added() -> None:
    tree = made((0.1, 0.2, 0.3))
    found = [tree.factor({"a": a, "b": b}) for a, b in ((0, 0), (1, 2), (0, 5), (5, 0), (5, 5))]
    assert found == pytest.approx(np.exp([0.11, 0.11, 0.21, 0.31, 0.31]))


def test_it_is_one_outside_what_it_was_fitted_on() -> None:
    tree = made((0.5, 0.5, 0.5))
    assert tree.factor({"a": 5.0, "b": 10.0}) > 1.6
    assert tree.factor({"a": 5.0, "b": 10.1}) == 1.0
    assert tree.factor({"a": -0.1, "b": 5.0}) == 1.0


def test_it_is_bounded() -> None:
    assert made((9.0, 9.0, 9.0)).factor({"a": 1.0, "b": 1.0}) == 2.0
    assert made((-9.0, -9.0, -9.0)).factor({"a": 1.0, "b": 1.0}) == 0.5


def test_a_written_correction_reads_as_it_was(tmp_path: Path) -> None:
    made((0.1, 0.2, 0.3)).write(tmp_path / "written.npz")
    read = fitted(tmp_path / "written.npz")
    assert read.factor({"a": 0.0, "b": 5.0}) == made((0.1, 0.2, 0.3)).factor({"a": 0.0, "b": 5.0})


def test_the_one_that_ships_is_whole() -> None:
    whole = fitted()
    assert len(set(whole.names.tolist())) == len(whole.low) == len(whole.high)
    middle = (whole.low + whole.high) / 2
    assert np.isfinite(whole.logarithms(middle[None])).all()
    inner = whole.asked != LEAF
    assert (whole.left[inner] > 0).all()
    assert (whole.right[inner] > 0).all()
