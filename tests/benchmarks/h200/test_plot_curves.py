"""The picture of the curves, drawn from the committed figures."""

import json
from pathlib import Path

import pytest

from benchmarks.h200.curves import CURVES
from benchmarks.pictures.search_curves import draw
from benchmarks.pictures.svg import OTHERS, OURS
from cudal2_agent.contract.errors import UsageError
from tests.benchmarks.pictures import dots, outside, words

PICTURE = Path(__file__).parents[3] / "docs/pictures/h200_search_curves.svg"
COMMITTED = CURVES.read_text(encoding="utf-8")


def test_the_committed_picture_is_of_the_committed_curves() -> None:
    assert PICTURE.read_text(encoding="utf-8") == draw(COMMITTED)


def test_each_point_of_both_curves_is_a_dot() -> None:
    found = json.loads(COMMITTED)
    points = sum(len(found[mode][key]) for mode in ("offline", "server") for key in ("over_gpu_seconds", "over_candidates"))
    picture = draw(COMMITTED)
    assert len(dots(picture, OURS)) == len(dots(picture, OTHERS)) == points > 0
    assert outside(picture) == []


def test_better_is_higher() -> None:
    points = [{"at": at, "geomean": value, "near_share": share} for at, value, share in ((1, 1.0, 0.2), (4, 1.3, 0.9))]
    figures = {"shapes": 3, "over_gpu_seconds": points, "over_candidates": points}
    picture = draw(json.dumps({"offline": figures, "server": {"shapes": 0}}))
    for colour in (OURS, OTHERS):
        [(left, low), (right, high)] = dots(picture, colour)[:2]
        assert left < right
        assert high < low
    assert "offline: 3 searches" in words(picture)


def test_without_searches_there_is_nothing_to_draw() -> None:
    with pytest.raises(UsageError, match=r"benchmarks\.h200\.curves"):
        draw(json.dumps({"offline": {"shapes": 0}, "server": {"shapes": 0}}))
