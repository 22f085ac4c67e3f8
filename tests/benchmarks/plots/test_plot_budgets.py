"""The picture of searches with different priors and budgets, drawn from the committed searches."""

from itertools import pairwise
from pathlib import Path

import pytest

from benchmarks.pictures.search_budgets import draw, main
from benchmarks.pictures.svg import BAD, GOOD, OTHERS, OURS
from benchmarks.proposals.budgets import read_arms
from cudal2_agent.contract.errors import UsageError
from tests.benchmarks.pictures import dots, outside, words

ROOT = Path(__file__).parents[3]
FOLDER = ROOT / "benchmarks/results/h200_budgets_2026-11-24"


def test_the_committed_picture_is_of_the_committed_searches(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("sys.argv", ["search_budgets", str(FOLDER), str(tmp_path / "drawn.svg")])
    main()
    picture = (ROOT / "docs/pictures/h200_budgets.svg").read_text(encoding="utf-8")
    assert (tmp_path / "drawn.svg").read_text(encoding="utf-8") == picture
    assert [len(dots(picture, colour)) for colour in (OTHERS, GOOD, BAD, OURS)] == [8, 8, 4, 4]
    assert outside(picture) == []
    assert {"analytic-48", "learned-48", "learned-8", "learned-8-limit"} <= set(words(picture))


def test_a_curve_only_rises() -> None:
    picture = draw(read_arms(FOLDER))
    for colour in (OTHERS, GOOD, BAD, OURS):
        points = dots(picture, colour)
        assert points == sorted(points, key=lambda point: point[0])
        assert all(later[1] <= before[1] for before, later in pairwise(points))


def test_more_searches_than_colours_are_refused() -> None:
    arms = read_arms(FOLDER)
    with pytest.raises(UsageError, match="colours for 4 searches"):
        draw({**arms, "another": arms["learned-8"]})
