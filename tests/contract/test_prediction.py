"""Predicted times within three percent are tied, whichever comes first."""

import pytest

from cudal2_agent.contract.reward.speedup import tied


@pytest.mark.parametrize(("a_us", "b_us", "expected"), [(100.0, 102.9, True), (100.0, 103.1, False), (5.0, 5.0, True)])
def test_times_within_three_percent_are_tied_in_both_orders(a_us: float, b_us: float, expected: bool) -> None:
    assert tied(a_us, b_us) is expected
    assert tied(b_us, a_us) is expected
