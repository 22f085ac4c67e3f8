"""The picture of adapting, drawn from the committed rows."""

import json
import re
from itertools import pairwise
from pathlib import Path

import pytest

from benchmarks.pictures.adaptation import draw
from benchmarks.pictures.svg import OTHERS, OURS
from cudal2_agent.contract.errors import UsageError
from tests.benchmarks.pictures import dots, outside, words

ROOT = Path(__file__).parents[3]
RESULTS = ROOT / "benchmarks/results"


@pytest.mark.parametrize(
    ("rows", "name", "counts"),
    [
        ("calibration_2026-11-23.jsonl", "h200_adaptation.svg", 5),
        ("h200_calibration_f16_2026-11-24_draws.jsonl", "h200_adaptation_f16.svg", 6),
        ("h200_calibration_server_2026-11-27_draws.jsonl", "h200_adaptation_server.svg", 4),
        ("h100_adaptation_2026-11-27.jsonl", "h100_adaptation.svg", 3),
    ],
)
def test_the_committed_pictures_are_of_the_committed_rows(rows: str, name: str, counts: int) -> None:
    picture = draw((RESULTS / rows).read_text(encoding="utf-8"))
    assert (ROOT / "docs/pictures" / name).read_text(encoding="utf-8") == picture
    assert len(dots(picture, OURS)) == len(dots(picture, OTHERS)) == counts
    assert outside(picture) == []


def test_names_of_arms_that_end_alike_do_not_overlap() -> None:
    rows = [("analytic prior", 0, 0.61), ("policy that ships", 0, 0.6), ("adapted", 2, 0.6), ("these runs alone", 2, 0.6)]
    rows += [("adapted", 8, 0.9), ("these runs alone", 8, 0.605)]
    picture = draw("\n".join(json.dumps({"arm": arm, "shapes": shapes, "first within 5 %": at}) for arm, shapes, at in rows))
    heights = sorted(float(y) for y in re.findall(r'<text x="470.0" y="([0-9.]+)"', picture))
    assert len(heights) == 4
    assert all(later - before >= 14 for before, later in pairwise(heights))


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
