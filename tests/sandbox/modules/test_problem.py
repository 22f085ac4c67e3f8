"""The sizes of a problem file, found and replaced in its syntax tree."""

import ast

import pytest

from cudal2_agent.contract.errors import UsageError
from cudal2_agent.sandbox.modules.tracing.problem import dims_of, with_dims

SOURCE = """
a = 4
b, c = 2 * 8, -3
d: int = 2**10
sizes = [7, 9]
twice = 1
twice = 2
both = also = 5
e = a * 2
f = 1.5
g = True
h = 2**1000
def get_inputs():
    inner = 6
"""


def test_whole_numbers_at_the_top_are_sizes() -> None:
    assert dims_of(SOURCE) == {"a": 4, "b": 16, "c": -3, "d": 1024, "sizes_0": 7, "sizes_1": 9, "both": 5, "also": 5}


def test_other_sizes_stand_in_their_places() -> None:
    found: dict[str, object] = {}
    exec(compile(with_dims(SOURCE, {"a": 5, "c": 6, "d": 7, "sizes_1": 8}), "problem", "exec"), found)
    assert [found[name] for name in ("a", "b", "c", "d", "sizes", "e")] == [5, 16, 6, 7, [7, 8], 10]


def test_names_of_one_value_change_together() -> None:
    assert ast.unparse(with_dims("both = also = 5", {"both": 6, "also": 6})) == "both = also = 6"
    with pytest.raises(UsageError, match="must have one here"):
        with_dims("both = also = 5", {"both": 6, "also": 7})


@pytest.mark.parametrize("source", ["def def", "x = " + "(" * 5000, "\0", "x = '\udcff'"])
def test_no_python_is_told(source: str) -> None:
    with pytest.raises(UsageError, match="is no Python"):
        dims_of(source)


def test_the_tree_stays_python() -> None:
    assert ast.unparse(with_dims("a = 4\nprint(a)", {"a": 12})) == "a = 12\nprint(a)"
