"""Draws what the attacks on the timer gained before and after, as an SVG: their time relative to the honest kernel.

Run from the repository's root: python -m benchmarks.pictures.attacks BEFORE.json AFTER.json docs/pictures/h200_redteam.svg
Rows are the attacks that were faster before than the honest kernel of the same tile.
"""

import argparse
import math
from collections.abc import Iterator
from pathlib import Path

from benchmarks.pictures.svg import BAD, FAINT, GOOD, RULE, bar, document, dot, line, text
from benchmarks.redteam.redteam_table import RedteamResult, RedteamRow

WIDTH, LEFT, RIGHT, TOP, ROW = 960, 330, 640, 92, 26
MAXIMUM = 1.25  # of the honest time, at the right edge of the bars
AS_FAST = 0.97  # of the honest time; slower attacks gained nothing


def draw(before: RedteamResult, after: RedteamResult) -> str:
    """Raises: ValueError if an attack of the first result is missing in the second."""
    later = {row.name: row for row in after.rows}
    gained = sorted((row for row in before.rows if _ratio(row) < AS_FAST), key=_ratio)
    if missing := [row.name for row in gained if row.name not in later]:
        raise ValueError(f"the second result lacks {', '.join(missing)}")
    foot = TOP + ROW * len(gained)
    body = [*_head(before, after), *_axis(foot)]
    for place, row in enumerate(gained):
        body += _row(TOP + ROW * (place + 0.5), row, later[row.name])
    return document(WIDTH, foot + 20, body)


def _head(before: RedteamResult, after: RedteamResult) -> Iterator[str]:
    yield text(20, 28, "Kernels that cheat the clock: time over the honest kernel's", 16, bold=True)
    yield text(WIDTH - 20, 28, f"{after.gpu}, {after.date}", 11, "end", FAINT)
    yield bar(20, 44, 12, 12, BAD)
    yield text(38, 54, f"before ({before.commit})")
    yield dot(176, 50, 5, GOOD)
    yield text(188, 54, "after: time where it was measured, else what refused it")


def _axis(foot: float) -> Iterator[str]:
    for tick in (0.0, 0.25, 0.5, 0.75, 1.0, 1.25):
        yield line(_x(tick), TOP, _x(tick), foot, "#222" if tick == 1 else RULE)
        yield text(_x(tick), TOP - 6, f"{tick:g}", 11, "middle", FAINT)


def _row(y: float, before: RedteamRow, after: RedteamRow) -> Iterator[str]:
    yield text(LEFT - 12, y + 4, before.name, 12, "end")
    ratio = _ratio(before)
    yield bar(LEFT, y - 7, _x(min(ratio, MAXIMUM)) - LEFT, 14, BAD)
    yield text(_x(min(ratio, MAXIMUM)) - 4, y + 4, f"{ratio:.2f}", 11, "end", "white")
    if after.ratio is None:
        yield text(RIGHT + 14, y + 4, f"refused: {after.layer}", 11, colour=GOOD)
        return
    yield dot(_x(min(after.ratio, MAXIMUM)), y, 5, GOOD)
    yield text(RIGHT + 14, y + 4, f"{after.ratio:.2f}, outputs right", 11, colour=GOOD)


def _ratio(row: RedteamRow) -> float:
    """Time relative to the honest kernel; infinite if either was not measured."""
    return row.ratio if row.ratio is not None else math.inf


def _x(ratio: float) -> float:
    return LEFT + (RIGHT - LEFT) * ratio / MAXIMUM


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else None)
    parser.add_argument("before", type=Path)
    parser.add_argument("after", type=Path)
    parser.add_argument("picture", type=Path)
    arguments = parser.parse_args()
    before, after = (RedteamResult.model_validate_json(path.read_text()) for path in (arguments.before, arguments.after))
    arguments.picture.write_text(draw(before, after), encoding="utf-8")


if __name__ == "__main__":
    main()
