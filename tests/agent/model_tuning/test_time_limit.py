"""How a time limit is divided."""

import math
import time

import pytest

from cudal2_agent.agent.model_tuning.time_limit import TimeLimit


def test_without_a_limit_nothing_ends() -> None:
    limit = TimeLimit(None, ("eager",), 3, ranges=True)
    assert math.isinf(limit.search_s(1000))
    assert limit.ranges_end_s is None


def test_searches_leave_time_for_what_follows(monkeypatch: pytest.MonkeyPatch) -> None:
    now = [100.0]
    monkeypatch.setattr(time, "monotonic", lambda: now[0])
    limit = TimeLimit(10, ("eager", "graph"), 2, ranges=True)
    searched = limit.search_s(5)
    assert limit.ranges_end_s == 100 + 600
    assert TimeLimit(10, ("eager", "graph"), 2, ranges=False).search_s(5) > searched
    assert TimeLimit(10, ("eager", "graph", "max-autotune"), 2, ranges=True).search_s(5) < searched
    now[0] += 30
    assert limit.search_s(5) == searched - 30


def test_of_few_minutes_half_is_for_searches(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(time, "monotonic", lambda: 100.0)
    limit = TimeLimit(1, ("eager", "graph", "compile"), 4, ranges=True)
    assert limit.search_s(20) == 30
