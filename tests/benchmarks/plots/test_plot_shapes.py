"""The picture in the README is the committed result, drawn."""

import json
import xml.etree.ElementTree as ElementTree
from pathlib import Path

from benchmarks.pictures.shapes import draw

ROOT = Path(__file__).parents[3]
RESULT = json.loads((ROOT / "benchmarks/results/h200_optimize_2026-11-21_prior.json").read_text())


def test_the_readme_shows_the_committed_result() -> None:
    assert (ROOT / "docs/pictures/h200_speedups.svg").read_text(encoding="utf-8") == draw(RESULT)


def test_every_shape_has_its_bars_and_its_time() -> None:
    root = ElementTree.fromstring(draw(RESULT))
    texts = [element.text for element in root.iter("{http://www.w3.org/2000/svg}text")]
    for row in RESULT["rows"]:
        task = row["task"]
        assert f"{task['m']}×{task['n']}×{task['k']}" in texts
        assert f"{row['time_us']:g} µs" in texts
        assert f"{row['speedup']['cublaslt-autotuning'][0]:.2f}" in texts


def test_a_shape_that_was_not_measured_is_left_out() -> None:
    rows = [*RESULT["rows"], {**RESULT["rows"][0], "status": "unmeasured"}]
    assert draw({**RESULT, "rows": rows}) == draw(RESULT)
