"""Chooses shapes of the grid: by which the model is judged after it was changed, or to which it may be fitted.

One shape at random from each stratum of the best times. Strata are equal in the logarithm of the best time, up to 500 us.
Left out: shapes of every other list, and those of the held-out shapes and of free sources.
Run from the repository's root:
    python -m benchmarks.emulator.timing_model.fresh --out LIST.json --about TEXT [--count 20] [--seed 23]
"""

import gzip
import json
import math
import random
from collections.abc import Iterable, Mapping
from functools import cache
from pathlib import Path

from benchmarks.emulator.timing_model.draw import DRAWN, SETS, listed
from benchmarks.emulator.timing_model.sources import LISTED, STORE_SHAPES
from benchmarks.harness import execute, script
from benchmarks.speed import grid
from benchmarks.speed.summary import ROWS

NUMBERS = ("", "_2", "_3")
JUDGED = (DRAWN, STORE_SHAPES, *(SETS / f"drawn_fresh{number}.json.gz" for number in NUMBERS))
FITTED = tuple(SETS / "fit" / f"drawn{number}.json.gz" for number in NUMBERS)
MAX_US = 500.0


def listed_in(paths: Iterable[Path]) -> set[str]:
    """The shapes of all these lists."""
    return {shape for path in paths for shape in listed(path)}


@cache
def apart() -> frozenset[str]:
    """Shapes that nothing may be fitted to."""
    sources = [row["shape"] for row in json.loads(LISTED.read_text())["sources"]]
    return frozenset({*listed_in(JUDGED), *sources, *grid.apart()})


def best_times() -> dict[str, float]:
    """The best time of each shape that was searched offline in layout nn. Unit: microseconds."""
    found: dict[str, float] = {}
    for file in sorted(ROWS.glob("offline-*.jsonl.gz")):
        with gzip.open(file, "rt", encoding="utf-8") as lines:
            for row in map(json.loads, lines):
                shape = "{m}x{n}x{k}".format_map(row["task"])
                if row["best"]:
                    found[shape] = min(found.get(shape, math.inf), row["best"]["time_us"])
    return found


def stratified(best_us: Mapping[str, float], count: int, source: random.Random) -> list[str]:
    """One shape of each of `count` strata; an empty stratum takes one of the nearest left. Ordered by time."""
    places = {shape: math.log(time_us) for shape, time_us in best_us.items() if time_us <= MAX_US}
    low, high = min(places.values()), max(places.values())
    chosen: list[str] = []
    for number in range(count):
        begin, end = (low + (high - low) * (number + step) / count for step in (0, 1))
        inside = sorted(shape for shape, place in places.items() if begin <= place <= end)
        nearest = min(places, key=lambda shape: abs(places[shape] - (begin + end) / 2))
        chosen.append(source.choice(inside) if inside else nearest)
        del places[chosen[-1]]
    return sorted(chosen, key=lambda shape: best_us[shape])


def main() -> None:
    parser = script(__file__, __doc__)
    parser.add_argument("--out", type=Path, required=True, help="the list that is written")
    parser.add_argument("--about", required=True, help="what the shapes are for, as a sentence")
    parser.add_argument("--count", type=int, default=20)
    parser.add_argument("--seed", type=int, default=23)
    options = parser.parse_args()
    left_out = apart() | listed_in(FITTED)
    allowed = {shape: time_us for shape, time_us in best_times().items() if shape not in left_out}
    if options.count > sum(time_us <= MAX_US for time_us in allowed.values()):
        parser.error(f"--count {options.count}: the campaigns have fewer shapes of at most {MAX_US:.0f} us that no list has")
    shapes = stratified(allowed, options.count, random.Random(options.seed))
    about = f"{options.about} Chosen by `python -m benchmarks.emulator.timing_model.fresh` (seed {options.seed})."
    options.out.write_text(json.dumps({"about": about, "shapes": shapes}) + "\n")
    print(f"{len(shapes)} of {len(allowed)} shapes")


if __name__ == "__main__":
    execute(main)
