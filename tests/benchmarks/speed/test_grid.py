import json

from benchmarks.speed import grid

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
