"""The tasks of a bench: lists of a JSON file, shapes, and parts that processes share."""

import json
from pathlib import Path

import pytest

from cudal2_agent.agent.bench.proposals.bench_shapes import read_bench_shapes
from cudal2_agent.contract.errors import UsageError


def sizes(given: list[str], part: str | None = None) -> list[tuple[int, int, int]]:
    return [(one.m, one.n, one.k) for one in read_bench_shapes(given, part)[0]]


@pytest.fixture
def lists(tmp_path: Path) -> str:
    path = tmp_path / "held.json"
    path.write_text(json.dumps({"seed": 1, "grid": ["64x64x64", "64x64x128"], "off_grid": ["1x8x8", "64x64x64"]}))
    return str(path)


def test_lists_of_a_file(lists: str) -> None:
    assert sizes([lists]) == [(64, 64, 64), (64, 64, 128), (1, 8, 8)]
    assert sizes([f"{lists}:off_grid"]) == [(1, 8, 8), (64, 64, 64)]
    assert sizes([f"{lists}:off_grid,2x8x8", "1x8x8"]) == [(1, 8, 8), (64, 64, 64), (2, 8, 8)]
    assert len(sizes(["grid1000"])) == 1000


def test_parts_are_disjoint_and_whole(lists: str) -> None:
    parts = [sizes([lists, "2x8x8"], f"{number}/3") for number in (1, 2, 3)]
    assert sorted(shape for part in parts for shape in part) == sorted(sizes([lists, "2x8x8"]))


@pytest.mark.parametrize("part", ["0/2", "3/2", "1", "a/b", "/"])
def test_a_wrong_part_is_one_line(part: str) -> None:
    with pytest.raises(UsageError, match="write 1/2"):
        sizes(["64x64x64"], part)


@pytest.mark.parametrize(
    ("content", "name", "message"),
    [
        ('{"grid": []}', "", "no shape"),
        ('{"other": []}', "", "holds no list grid or off_grid of shapes; it holds other"),
        ('{"grid": ["64x64x64"]}', ":off", "holds no list off of shapes; it holds grid"),
        ('{"grid": [64]}', "", "64 is not a shape"),
        ('["64x64"]', "", "is not M x N x K"),
        ("[", "", "cannot be read as JSON"),
        ("3", "", "holds no list"),
    ],
)
def test_a_wrong_file_is_one_line(tmp_path: Path, content: str, name: str, message: str) -> None:
    path = tmp_path / "s.json"
    path.write_text(content)
    with pytest.raises(UsageError, match=message):
        sizes([f"{path}{name}"])
