"""The shapes of the grid, and an H100 beside the published figures for them."""

import json
from statistics import geometric_mean, mean

import pytest

from benchmarks.speed import grid
from benchmarks.speed.grid import grid_shapes
from benchmarks.speed.h100_table import h100_shapes, published, tables
from cudal2_agent.contract.errors import UsageError
from cudal2_agent.contract.records.task import TimingMode
from tests.doubles.campaign_rows import shape_result

# ---- the grid --------------------------------------------------------------------------------------------------------------
DRAWN = json.loads(grid.HELD_OUT.read_text())


def test_the_grid_has_a_thousand_shapes():
    assert len(set(grid.grid_shapes())) == 1000


def test_the_list_is_the_one_that_was_drawn():
    assert DRAWN["grid"] == grid.draw_held_out(DRAWN["measured_before"])
    assert tuple(DRAWN["off_grid"]) == grid.OFF_GRID


def test_a_tenth_of_the_grid_and_fifty_others_are_held_out():
    shapes = set(grid.grid_shapes())
    assert len(set(DRAWN["grid"]) & shapes) == 100
    assert len(set(DRAWN["off_grid"])) == 50
    assert not set(DRAWN["off_grid"]) & shapes
    assert not set(DRAWN["grid"]) & set(DRAWN["measured_before"])
    assert len(grid.held_out()) == 150
    assert grid.apart() == grid.held_out() | set(DRAWN["measured_before"])


def test_a_sample_of_the_grid_is_measured_in_the_other_layouts():
    tn, nt = grid.shapes_in("tn"), grid.shapes_in("nt")
    assert len(set(tn)) == len(set(nt)) == 150
    assert {*tn, *nt} <= set(grid.grid_shapes())
    assert tn != nt
    assert grid.shapes_in("tn") == tn


# ---- the h100 table --------------------------------------------------------------------------------------------------------
H100 = "NVIDIA H100 80GB HBM3 driver-580.1 toolkit-13.0 cublas-13.1"


def test_the_published_figures_are_those_of_the_paper() -> None:
    """Its abstract's means for the H100: +7.0 % offline and +22.1 % server; slower on 34 and 20 % of the shapes."""
    for mode, average, slower in ((TimingMode.OFFLINE, 1.070, 0.338), (TimingMode.SERVER, 1.221, 0.203)):
        ratios = published(mode)
        assert ratios.keys() == set(grid_shapes())
        assert mean(ratios.values()) == pytest.approx(average, abs=5e-4)
        assert sum(ratio < 1 for ratio in ratios.values()) / 1000 == pytest.approx(slower)


def test_a_tenth_of_the_grid_is_run() -> None:
    assert len(set(h100_shapes())) == 100
    assert set(h100_shapes()) <= set(grid_shapes())


def test_both_chips_stand_beside_the_paper() -> None:
    paper = published(TimingMode.OFFLINE)
    rows = [
        shape_result("64x64x64", 1.6, 2.0, environment=H100),
        shape_result("8192x8192x8192", 0.99, 1600.0, environment=H100),
        shape_result("64x64x64", 2.0, 2.0),
    ]
    text = "\n".join(tables(rows, every_shape=True))
    assert f"| under 4 µs | 1 | 1.600 | {paper['64x64x64']:.3f} | {int(paper['64x64x64'] < 1.6)} | 2.000 |" in text
    theirs = geometric_mean([paper["64x64x64"], paper["8192x8192x8192"]])
    assert f"| all | 2 | {geometric_mean([1.6, 0.99]):.3f} | {theirs:.3f} |" in text
    assert "| 2.000 (1 of them) |" in text
    assert f"| 8192x8192x8192 | {1600 / 0.99:.2f} | 0.990 | {paper['8192x8192x8192']:.3f} | — |" in text
    assert "server" not in text


def test_without_an_h100_there_is_no_table() -> None:
    with pytest.raises(UsageError, match="no row comes from an H100"):
        list(tables([shape_result("64x64x64")]))
