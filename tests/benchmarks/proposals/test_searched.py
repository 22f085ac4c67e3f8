"""How good the first candidates of searches were."""

from types import SimpleNamespace
from typing import Any

import pytest

from benchmarks.proposals.searched import judged, kind_of, table
from cudal2_agent.contract.records.task import Layout, TimingMode
from tests.doubles.campaign_rows import shape_result


def search(run_id: str, *best: float | None) -> Any:
    return SimpleNamespace(run_id=run_id, best=list(best))


def test_candidates_count_over_the_race_of_their_search() -> None:
    found = judged(shape_result("64x64x64", 2.0), search("a", None, 1.0, *[1.9] * 7, 2.0))
    assert found is not None
    assert found == (0.0, pytest.approx(0.95), 10)
    short = judged(shape_result("64x64x64", 2.0), search("a", 1.5, 1.8))
    assert short == (0.75, pytest.approx(0.9), 2)
    assert judged(shape_result("64x64x64", best=None, best_without=None), search("a", 1.0)) is None


def test_kinds_are_apart_and_rows_without_steps_do_not_count() -> None:
    rows = [
        shape_result("64x64x64", 2.0, run_id="good"),
        shape_result("64x64x128", 2.0, run_id="late"),
        shape_result("1x4096x4096", 2.0, run_id="held out", layout=Layout.TN, mode=TimingMode.SERVER),
        shape_result("64x128x128", 2.0, run_id="lost"),
    ]
    searches = [search("good", 1.95), search("late", 1.0, 1.99), search("held out", 2.0)]
    grid, *others = list(table(rows, searches))[2:]
    assert grid.startswith("| offline, nn, grid | 2 | 2 | 50 % (0–100) | 50 % (0–100) |")
    assert len(others) == 1
    assert others[0].startswith("| server, tn, off the grid, held out | 1 | 1 | 100 % (100–100) | 100 % (100–100) |")
    assert kind_of(rows[0]) == "offline, nn, grid"
