"""The picture of adapting, drawn from the committed rows."""

import json
from pathlib import Path

import pytest

from benchmarks.pictures.adaptation import draw
from benchmarks.pictures.svg import OTHERS, OURS
from contract.errors import UsageError
from tests.benchmarks.pictures import dots, outside, words

ROOT = Path(__file__).parents[3]
COMMITTED = (ROOT / "benchmarks/results/calibration_2026-11-23.jsonl").read_text(encoding="utf-8")


def test_the_committed_picture_is_of_the_committed_rows() -> None:
    picture = draw(COMMITTED)
    assert (ROOT / "docs/pictures/h200_adaptation.svg").read_text(encoding="utf-8") == picture
    assert len(dots(picture, OURS)) == len(dots(picture, OTHERS)) == 5
    assert outside(picture) == []


def test_a_point_is_the_mean_of_its_draws_and_better_is_higher() -> None:
    rows = [("analytic prior", 0, 0.5), ("offline policy", 0, 0.6), ("adapted", 2, 0.6), ("adapted", 2, 0.7)]
    rows += [("adapted", 8, 0.8), ("server runs alone", 2, 0.5), ("server runs alone", 8, 0.65)]
    picture = draw("\n".join(json.dumps({"arm": arm, "shapes": shapes, "first within 5 %": at}) for arm, shapes, at in rows))
    [(left, low), (right, high)] = dots(picture, OURS)
    [_, (_, alone)] = dots(picture, OTHERS)
    assert left < right
    assert high < low == alone
    assert "offline policy, not adapted" in words(picture)


def test_rows_without_an_arm_are_refused() -> None:
    with pytest.raises(UsageError, match="the rows lack 'adapted'"):
        draw(json.dumps({"arm": "offline policy", "shapes": 0, "first within 5 %": 0.5}))
