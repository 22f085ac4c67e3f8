"""The figures by which predictions are judged."""

import math

import pytest

from benchmarks.emulator.timing_model.predicting import spearman
from benchmarks.emulator.timing_model.screening import searched, simulated


def test_rank_correlation_sees_the_order_alone() -> None:
    assert spearman([1, 2, 3, 4], [10, 11, 50, 900]) == pytest.approx(1)
    assert spearman([1, 2, 3, 4], [4, 3, 2, 1]) == pytest.approx(-1)


def test_ties_share_the_mean_of_their_ranks() -> None:
    assert spearman([1, 1, 2], [1, 2, 3]) == pytest.approx(math.sqrt(3) / 2)


def test_two_kernels_have_no_rank_correlation() -> None:
    assert math.isnan(spearman([1, 2], [1, 2]))


def test_a_search_leaves_out_what_is_predicted_far_behind_the_best_measured_time() -> None:
    kernels = [(10.0, 10.0), (11.0, 12.0), (25.0, 9.0), (30.0, 30.0)]
    assert searched(kernels, 2.0, 2) == (9.0, 1), "the best-predicted one of a round is timed however slow it is"
    assert searched([(10.0, 10.0), (11.0, 12.0), (9.0, 11.0), (25.0, 5.0)], 2.0, 2) == (10.0, 1), "a wrong prediction costs it"
    assert searched(kernels, 3.0, 2) == (9.0, 0)


def test_what_a_screen_loses_is_a_mean_over_shapes() -> None:
    always = [(1.0, 10.0), (100.0, 5.0)]
    assert simulated([always, always], 2.0, 1, 50) == (0.0, 0.0, 0.0), "alone in its round, each is timed"
    share, mean, worst = simulated([[(1.0, 10.0), (1.0, 10.0), (100.0, 5.0), (1.0, 10.0)]], 2.0, 2, 200)
    assert 0 < share < 0.25
    assert 0 < mean < 1
    assert worst == pytest.approx(1.0)
