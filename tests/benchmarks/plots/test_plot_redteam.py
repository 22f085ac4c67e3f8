"""The picture of the timing cheats shows what the two tables hold."""

from pathlib import Path

import pytest

from benchmarks.pictures.attacks import draw
from benchmarks.pictures.svg import GOOD
from benchmarks.redteam.redteam_table import RedteamResult
from tests.benchmarks.pictures import dots, outside, words

RESULTS = Path(__file__).parents[3] / "benchmarks" / "results"
BEFORE, AFTER = (
    RedteamResult.model_validate_json((RESULTS / f"redteam_{name}_2026-11-22.json").read_text())
    for name in ("before_h200", "h200")
)


def test_every_cheat_that_paid_before_has_its_row() -> None:
    picture = draw(BEFORE, AFTER)
    paid = [row for row in BEFORE.rows if row.ratio is not None and row.ratio < 0.97]
    assert len(paid) > 10
    later = {row.name: row for row in AFTER.rows}
    for row in paid:
        assert row.name in words(picture)
        told = (
            f"refused: {later[row.name].layer}"
            if later[row.name].ratio is None
            else f"{later[row.name].ratio:.2f}, outputs right"
        )
        assert told in words(picture)
    measured = sum(later[row.name].ratio is not None for row in paid)
    assert len(dots(picture, GOOD)) == measured + 1, "one more in the legend"
    assert not outside(picture)


def test_an_attack_that_was_not_tried_again_is_an_error() -> None:
    with pytest.raises(ValueError, match="the second result lacks"):
        draw(BEFORE, AFTER.model_copy(update={"rows": ()}))
