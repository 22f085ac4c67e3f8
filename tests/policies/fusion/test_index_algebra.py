"""Indices are simplified, and mean the same afterwards."""

import math

from hypothesis import given
from hypothesis import strategies as st

from cudal2_agent.policies.fusion.index_algebra import Index, Var, flat, number, of, unflat

A, B, C = Var("a", 6), Var("b", 10), Var("c", 7)
STEPS = st.lists(st.tuples(st.sampled_from(["floor", "rest", "times", "plus", "apart"]), st.integers(1, 24)), max_size=5)


def walked(value: "Index | int", steps: list[tuple[str, int]]) -> "Index | int":
    for kind, by in steps:
        match kind:
            case "floor":
                value = value // by
            case "rest":
                value = value % by
            case "times":
                value = value * by
            case "plus":
                value = value + by
            case "apart":
                value = (value // by) * by + value % by
    return value


@given(st.tuples(*[st.integers(0, 12)] * 3), STEPS, st.integers(0, 5), st.integers(0, 9), st.integers(0, 6))
def test_an_index_means_what_its_numbers_mean(
    factors: tuple[int, int, int], steps: list[tuple[str, int]], a: int, b: int, c: int
) -> None:
    index = of(A) * factors[0] + of(B) * factors[1] + of(C) * factors[2]
    value = a * factors[0] + b * factors[1] + c * factors[2]
    found, wanted = walked(index, steps), walked(value, steps)
    assert isinstance(found, Index)
    numbers = {A: number(a), B: number(b), C: number(c)}
    assert found.replace(numbers) == number(int(wanted))
    assert found.low <= wanted <= found.high
    names = {"a": a, "b": b, "c": c}
    assert eval(str(found).replace("u", "").replace("/", "//"), {}, names) == wanted


@given(st.lists(st.integers(1, 6), min_size=1, max_size=4), st.sampled_from([1, 2, 4]))
def test_what_a_reshape_takes_apart_is_put_together(shape: list[int], lanes: int) -> None:
    shape = [*shape, lanes]
    place = of(Var("q", math.prod(shape) // lanes)) * lanes + (lanes - 1)
    assert flat(unflat(place, shape), shape) == place


def test_a_vector_s_lanes_differ_by_one_within_a_row() -> None:
    """8 columns of 4 lanes: the row is that of the group, and lanes are neighbours."""
    group = of(Var("q", 40)) * 4
    rows = [unflat(group + lane, (5, 32))[0] for lane in range(4)]
    assert len(set(rows)) == 1
    columns = [unflat(group + lane, (5, 32))[1] for lane in range(4)]
    assert [each - columns[0] for each in columns] == [number(lane) for lane in range(4)]


@given(st.integers(1, 9), st.integers(1, 9), st.integers(1, 9))
def test_a_group_s_row_is_found_in_the_index_of_its_element(batch: int, groups: int, channels: int) -> None:
    """As GroupNorm reads its statistics: rows of channels of 3 by 5 elements."""
    row, place = of(Var("o", batch * groups)), of(Var("r", channels * 15))
    image, channel, *_ = unflat(row * (channels * 15) + place, (batch, groups * channels, 3, 5))
    assert flat([image, channel // channels], (batch, groups)) == row
