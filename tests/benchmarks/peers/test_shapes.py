import pytest

from benchmarks.peers.shapes import COUNT, chosen_shapes, default_shapes
from benchmarks.speed.grid import grid_shapes, held_out
from cudal2_agent.contract.errors import UsageError


def test_the_default_shapes_are_of_the_grid_and_none_is_held_out() -> None:
    shapes = default_shapes()
    assert len(set(shapes)) == COUNT
    assert set(shapes) <= set(grid_shapes()) - held_out()
    assert chosen_shapes([]) == shapes == default_shapes()


def test_held_out_and_too_many_shapes_are_refused() -> None:
    apart = sorted(held_out())[0]
    with pytest.raises(UsageError, match=f"{apart}: held out"):
        chosen_shapes(["64x64x64", apart])
    with pytest.raises(UsageError, match="41 shapes are too many"):
        chosen_shapes(["64x64x64"] * 41)
    assert chosen_shapes(["64_64_64"]) == ["64x64x64"]
