"""The picture of tuned products is the committed rows, drawn."""

import json
from pathlib import Path

import pytest

from benchmarks.pictures.svg import OTHERS, OURS
from benchmarks.pictures.tuned import HIGH, LOW, draw
from cudal2_agent.contract.errors import UsageError
from tests.benchmarks.pictures import dots, outside, words

ROOT = Path(__file__).parents[3]
ROWS = (ROOT / "benchmarks/h200/rows/tuned-2026-11-23.jsonl").read_text("utf-8")


def test_the_committed_picture_shows_the_committed_rows() -> None:
    assert (ROOT / "docs/pictures/h200_tuned.svg").read_text("utf-8") == draw(ROWS)


def test_every_product_is_a_dot_and_a_faster_one_stands_higher() -> None:
    rows = [json.loads(line) for line in ROWS.splitlines()]
    picture = draw(ROWS)
    kept = [row for row in rows if row["faster"]]
    assert len(dots(picture, OURS)) == len(kept) + 1  # and the legend's
    assert len(dots(picture, OTHERS)) == len(rows) - len(kept) + 1
    assert all(LOW < row["speedup"]["ratio"] < HIGH for row in rows)
    highest = min(y for _, y in dots(picture, OURS)[1:])
    slower = json.dumps(rows[0] | {"speedup": {"ratio": 0.95}, "faster": True})
    lowest = max(y for _, y in dots(draw(f"{ROWS}{slower}\n"), OURS)[1:])
    assert highest < lowest


def test_texts_stay_inside() -> None:
    assert outside(draw(ROWS)) == []
    assert "dW (nt): 32 of 49 kept" in words(draw(ROWS))


def test_a_layout_without_products_is_told() -> None:
    with pytest.raises(UsageError, match="no product of layout nt"):
        draw("\n".join(line for line in ROWS.splitlines() if '"layout":"nt"' not in line))
