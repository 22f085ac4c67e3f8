"""The figures by which predictions are judged."""

import math

import pytest

from benchmarks.timing_model.predicting import spearman


def test_rank_correlation_sees_the_order_alone() -> None:
    assert spearman([1, 2, 3, 4], [10, 11, 50, 900]) == pytest.approx(1)
    assert spearman([1, 2, 3, 4], [4, 3, 2, 1]) == pytest.approx(-1)


def test_ties_share_the_mean_of_their_ranks() -> None:
    assert spearman([1, 1, 2], [1, 2, 3]) == pytest.approx(math.sqrt(3) / 2)


def test_two_kernels_have_no_rank_correlation() -> None:
    assert math.isnan(spearman([1, 2], [1, 2]))
