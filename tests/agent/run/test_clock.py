"""The clock of a run: what was spent before, and what is not the agent's own time."""

import pytest

from cudal2_agent.agent.run.clock import RunClock


class Ticking:
    """A clock that a test moves."""

    now_s = 100.0

    def __call__(self) -> float:
        return self.now_s


def test_the_clock_goes_on_from_what_was_spent() -> None:
    ticking = Ticking()
    clock = RunClock(30.0, ticking)
    ticking.now_s += 5
    assert clock.spent_s() == pytest.approx(35.0)


def test_a_lap_leaves_out_what_was_outside() -> None:
    ticking = Ticking()
    clock = RunClock(0.0, ticking)
    ticking.now_s += 2
    with clock.outside():
        ticking.now_s += 10
    ticking.now_s += 1
    assert clock.lap_s() == pytest.approx(3.0)
    ticking.now_s += 4
    assert clock.lap_s() == pytest.approx(4.0)


def test_time_outside_counts_even_when_it_ends_in_an_error() -> None:
    ticking = Ticking()
    clock = RunClock(0.0, ticking)

    def lose_the_worker() -> None:
        with clock.outside():
            ticking.now_s += 10
            raise RuntimeError

    with pytest.raises(RuntimeError):
        lose_the_worker()
    assert clock.lap_s() == 0.0
