"""The shapes off the grid are those that the committed rule draws."""

import pytest

from benchmarks.speed.drawn_shapes import draw, shapes, task_of
from benchmarks.speed.grid import grid_shapes, held_out
from cudal2_agent.contract.plan.resolve import operand_shape


def unaligned(named: str) -> list[str]:
    return [name for name in ("A", "B", "D") if operand_shape(task_of(named), name)[1] % 8]


def both(halves: dict[str, list[str]]) -> list[str]:
    return [*halves["tuning"], *halves["held_out"]]


def test_the_committed_shapes_are_those_of_the_rule() -> None:
    assert shapes() == draw()


def test_each_kind_is_what_its_name_says() -> None:
    found: dict[str, dict[str, list[str]]] = shapes()["unaligned"]  # type: ignore[assignment]
    assert [len(set(both(halves))) for halves in found.values()] == [16] * 5
    assert all(len(halves["tuning"]) == len(halves["held_out"]) for halves in found.values())
    assert all(unaligned(named) for halves in found.values() for named in both(halves))
    assert all(unaligned(named) == ["A", "B", "D"] for named in both(found["compute-bound, all rows odd"]))
    assert all(len(unaligned(named)) == 1 for named in both(found["one odd operand"]))
    assert all(size % 2 == 0 for named in both(found["rows of 4 or 8 bytes"]) for size in task_of(named).dims.values())
    assert all(task_of(named).m <= 65 for named in both(found["M up to 64"]))


@pytest.mark.parametrize("half", ["tuning", "held_out"])
def test_aligned_ones_are_new_and_off_the_grid(half: str) -> None:
    found: list[str] = shapes()["aligned"][half]  # type: ignore[index]
    assert len(set(found)) == 25
    assert not any(unaligned(named) for named in found)
    assert not {named.split()[0] for named in found} & {*grid_shapes(), *held_out()}
