"""The picture of a campaign, drawn from invented rows and, once there are any, from the committed ones."""

import json
import xml.etree.ElementTree as ElementTree
from pathlib import Path

import pytest

from benchmarks.speed.campaign_picture import OURS, draw
from benchmarks.speed.grid import held_out
from benchmarks.speed.summary import ROWS, SUMMARY, is_headline
from cudal2_agent.agent.campaign.result_files import counting, read_results
from cudal2_agent.contract.errors import UsageError
from cudal2_agent.contract.records.task import Layout, TimingMode
from tests.doubles.campaign_rows import campaign_rows, shape_result

PICTURE = Path(__file__).parents[3] / "docs/pictures/h200_campaign.svg"
INVENTED = campaign_rows()
SVG = "{http://www.w3.org/2000/svg}"
EM = 0.55  # mean width of a letter over the font size; DejaVu Sans, a wide font, needs 0.52 for these texts


def words(picture: str) -> list[str]:
    return [element.text or "" for element in ElementTree.fromstring(picture).iter(f"{SVG}text")]


def dots(picture: str, colour: str) -> list[tuple[float, float]]:
    circles = ElementTree.fromstring(picture).iter(f"{SVG}circle")
    return [(float(one.attrib["cx"]), float(one.attrib["cy"])) for one in circles if one.attrib["fill"] == colour]


def outside(picture: str) -> list[str]:
    """Texts that exceed the picture when set in a wide font."""
    root = ElementTree.fromstring(picture)
    width, height = float(root.attrib["width"]), float(root.attrib["height"])
    found = []
    for element in root.iter(f"{SVG}text"):
        x, y, size = (float(element.attrib[name]) for name in ("x", "y", "font-size"))
        length = EM * size * len(element.text or "")
        left = x - length * {"start": 0.0, "middle": 0.5, "end": 1.0}[element.attrib.get("text-anchor", "start")]
        if left < 0 or left + length > width or not size <= y <= height:
            found.append(element.text or "")
    return found


def test_every_shape_of_the_grid_is_a_dot_in_its_mode() -> None:
    picture = draw(INVENTED)
    assert len(dots(picture, OURS)) == 2 + sum(is_headline(row) and row.best is not None for row in INVENTED)
    assert outside(picture) == []


def test_a_mode_without_rows_is_left_out() -> None:
    offline = [row for row in INVENTED if row.task.mode is TimingMode.OFFLINE]
    assert any(word.startswith("offline: 1,000 shapes, geometric mean") for word in words(draw(offline)))
    assert not any("server" in word for word in words(draw(offline)))


def test_other_layouts_and_shapes_off_the_grid_are_not_drawn() -> None:
    rows = [shape_result("64x64x64"), shape_result("64x64x64", layout=Layout.NT), shape_result("1x4096x4096")]
    assert len(dots(draw(rows), OURS)) == 2 + 1


def test_faster_is_higher_and_slower_baselines_are_to_the_right() -> None:
    rows = [shape_result("64x64x64", 1.5, 3.0), shape_result("8192x8192x8192", 0.9, 1500.0)]
    (left, high), (right, low) = dots(draw(rows), OURS)[2:]
    assert (left, high) < (right, low)
    assert {"under 4 µs", "1.50x", "over 60 µs", "0.90x"} <= set(words(draw(rows)))


def test_held_out_shapes_have_an_edge() -> None:
    shape = next(shape for shape in sorted(held_out()) if shape.startswith("64x"))
    picture = draw([shape_result(shape), shape_result("64x64x64")])
    assert picture.count('stroke="#222"/>') >= 2
    assert picture.count(f'fill="{OURS}" stroke="none"') == 2


def test_nothing_to_draw_is_an_error() -> None:
    with pytest.raises(UsageError, match="nothing to draw"):
        draw([shape_result("3x5x8")])


@pytest.mark.skipif(not PICTURE.exists(), reason="no campaign is committed yet")
def test_the_committed_picture_is_that_of_the_committed_rows() -> None:
    assert PICTURE.read_text(encoding="utf-8") == draw(
        counting(read_results([ROWS]), json.loads(SUMMARY.read_text())["environment"])
    )
